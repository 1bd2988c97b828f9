package sweeper

import (
	"net/http"
	"strconv"

	"github.com/servo-orchestration/servo/internal/httpx"
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
				_ = httpx.Problem(w, contract.Problem{Title: "Malformed request", Status: http.StatusBadRequest, Detail: "full must be true or false"}) // on an error, the caller has disconnected
				return
			}
		}
		result, err := s.Sweep(r.Context(), full)
		if err != nil {
			_ = httpx.Problem(w, contract.Problem{Title: "Sweep incomplete", Status: http.StatusInternalServerError, Detail: err.Error()}) // as above
			return
		}
		_ = httpx.JSON(w, http.StatusOK, result) // an error means that the caller has disconnected
	})
}
