package httpx_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/contract"
)

func TestProblemIsRFC9457Document(t *testing.T) {
	w := httptest.NewRecorder()
	require.NoError(t, httpx.Problem(w, contract.Problem{Status: http.StatusConflict, Detail: "a < b", CurrentAttemptID: "x"}))
	require.Equal(t, http.StatusConflict, w.Code)
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.Equal(t, `{"title":"Conflict","status":409,"detail":"a < b","current_attempt_id":"x"}`+"\n", w.Body.String())
}

func TestRefuseShortensDetail(t *testing.T) {
	w := httptest.NewRecorder()
	httpx.Refuse(w, http.StatusBadRequest, strings.Repeat("x", 10_000))
	require.Less(t, w.Body.Len(), 1000)
}

func TestJSONKeepsStatus(t *testing.T) {
	w := httptest.NewRecorder()
	require.NoError(t, httpx.JSON(w, http.StatusAccepted, map[string]int{"a": 1}))
	require.Equal(t, http.StatusAccepted, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, `{"a":1}`+"\n", w.Body.String())
}
