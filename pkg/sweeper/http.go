package sweeper

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// Pattern is the sweeper's route.
const Pattern = "POST /v1/sweep"

// Register adds the sweeper's route to a mux. The parameter full=true requests a full
// sweep.
func Register(mux *http.ServeMux, s *Sweeper) {
	mux.HandleFunc(Pattern, func(w http.ResponseWriter, r *http.Request) {
		full := false
		if text := r.URL.Query().Get("full"); text != "" {
			var err error
			if full, err = strconv.ParseBool(text); err != nil {
				problem(w, http.StatusBadRequest, "Malformed request", "full must be true or false")
				return
			}
		}
		result, err := s.Sweep(r.Context(), full)
		if err != nil {
			problem(w, http.StatusInternalServerError, "Sweep incomplete", err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(result) // fails only if the client is gone
	})
}

func problem(w http.ResponseWriter, status int, title, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(contract.Problem{Title: title, Status: status, Detail: contract.Truncate(detail)}) //nolint:errchkjson // fails only if the client is gone
}
