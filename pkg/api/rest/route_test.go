package rest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/api/rest"
)

// answered returns the path of the call into which a request is translated, or the response if the request is rejected.
func answered(method, path, body string) string {
	called := ""
	h := rest.New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called = r.URL.Path }))
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	if called != "" {
		return called[strings.LastIndexByte(called, '/')+1:]
	}
	text, _ := io.ReadAll(w.Result().Body)
	return http.StatusText(w.Code) + " " + w.Header().Get("Allow") + " " + string(text)
}

func TestRequestsFindTheirCalls(t *testing.T) {
	for request, want := range map[string]string{
		"GET /v1/runs":                                      "ListRuns",
		"HEAD /v1/runs":                                     "ListRuns",
		"GET /v1/tenants/a/workspaces/b/runs/x":             "GetRun",
		"GET /v1/runs/x/tasks/raw%2Fa%5Bd=1%3A2%5D":         "GetTask",
		"GET /v1/runs/x/tasks/raw%2Fa:explain":              "ExplainTask",
		"GET /v1/runs/x/tasks/raw%2Fa%3Aexplain":            "GetTask",
		"GET /v1/runs/x/tasks/a:b":                          "GetTask",
		"POST /v1/runs/x:cancel":                            "CancelRun",
		"POST /v1/backfills:plan":                           "PlanBackfill",
		"GET /v1/assets/raw/a:explain":                      "ExplainPartition",
		"GET /v1/assets/raw/a/partitions/date=2025:explain": "ExplainPartition",
		"GET /v1/assets/raw/a/partitions:summary":           "GetPartitionSummary",
		"GET /v1/watch":                                     "Watch",
	} {
		method, path, _ := strings.Cut(request, " ")
		require.Equal(t, want, answered(method, path, ""), request)
	}
	for request, want := range map[string]string{
		"GET /v1/runs/x:cancel":                "Method Not Allowed POST ",
		"DELETE /v1/runs":                      "Method Not Allowed GET, POST ",
		"POST /v1/runs/x:nothing":              "Method Not Allowed GET ",
		"GET /v1/nothing":                      "Not Found  ",
		"GET /v1/runs/":                        "Not Found  ",
		"GET /v1/runs?nothing=1":               `Bad Request  {"type":"urn:servo:problem:invalid-request","title":"Invalid request","status":400,"detail":"invalid request: \"nothing\" is unknown"`,
		"GET /v1/runs/x?run_id=y":              `Bad Request  `,
		"GET /v1/runs?page_size=1&page_size=2": `Bad Request  `,
		"POST /v1/runs?all=true":               `Bad Request  `,
	} {
		method, path, _ := strings.Cut(request, " ")
		require.True(t, strings.HasPrefix(answered(method, path, ""), want), "%s: %s", request, answered(method, path, ""))
	}
	require.Contains(t, answered("POST", "/v1/runs/x:cancel", `{"run_id":"y"}`), `is \"y\" in the body and \"x\" in the path: remove it from the body`)
	require.Equal(t, "CancelRun", answered("POST", "/v1/runs/x:cancel", `{"run_id":"x","force":true}`))
	require.Contains(t, answered("POST", "/v1/runs", `{"assets":["`+strings.Repeat("a", rest.MaxBody)+`"]}`), "Request Entity Too Large")
}
