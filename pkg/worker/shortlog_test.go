package worker_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// TestShortLogIsPartOfTheReport: if a log is short enough for the report, the worker stores no object for it. Secrets
// in such a log are masked. Longer logs, logs that are not UTF-8, and logs for older control planes are stored as
// objects.
func TestShortLogIsPartOfTheReport(t *testing.T) {
	const limit = 16
	for name, c := range map[string]struct {
		script string
		bytes  int32
		want   string
	}{
		"short":  {"printf 'token %s' $TOKEN", limit, "token ***"},
		"limit":  {"printf %016d 7", limit, strings.Repeat("0", 15) + "7"},
		"long":   {"printf %017d 7", limit, ""},
		"binary": {`printf '\377'`, limit, ""},
		"older":  {"printf short", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := withSecrets(t, map[string]plan.Work{"a/b": shellWithSecrets(c.script, map[string]string{"TOKEN": "file:token"})}, task("a/b", "", nil))
			require.Equal(t, http.StatusOK, w.deliver("a/b", func(env *contract.Envelope) { env.LogBytes = c.bytes }))
			require.Equal(t, c.want, w.control.last(t).Log)
			stored := 1
			if c.want != "" {
				stored = 0
			}
			require.Len(t, w.keysBelow("logs/"), stored)
		})
	}
}
