package worker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/secret"
)

// newParts returns the parts of an empty log, and their store. The test writes the log.
func newParts(t *testing.T, mask *secret.Mask) (*logParts, *memblob.Store) {
	t.Helper()
	store := memblob.New(memblob.Options{})
	a := &attempt{
		identity: identity{env: &contract.Envelope{RunID: "r", TaskKey: "a/b", Attempt: 1, AttemptID: "i"}, nonce: "n1"},
		w:        &Worker{cfg: Config{Store: store}}, job: &job{life: t.Context()}, log: slog.New(slog.DiscardHandler),
	}
	a.mask = mask
	return a.newParts(), store
}

func storedParts(t *testing.T, s blob.Store, p *logParts) (text string, count int, size int64) {
	t.Helper()
	for o, err := range s.List(t.Context(), blob.ListOptions{Prefix: p.a.logKey() + "."}) {
		require.NoError(t, err)
		count++
		size += o.Size
	}
	var parts engine.LogParts
	data, err := parts.Next(t.Context(), s, p.a.logKey())
	require.NoError(t, err)
	return string(data), count, size
}

// This test tries every position of a secret relative to the boundaries of parts.
func TestLogPartsMaskSecretsAtTheirBoundaries(t *testing.T) {
	const value = "hunter2-canary"
	mask := secret.NewMask([]string{value})
	for cut := range len(value) + 1 {
		for _, before := range []int{0, partBytes - 1, partBytes} {
			p, store := newParts(t, mask)
			p.a.output.printf("%s%s", strings.Repeat("a", before), value[:cut])
			p.read()
			p.store(t.Context())
			p.a.output.printf("%s end\n", value[cut:])
			p.read()
			p.store(t.Context())
			text, _, _ := storedParts(t, store, p)
			require.Equal(t, strings.Repeat("a", before)+"*** end\n", text, "%d bytes of the secret after %d others", cut, before)
			for o, err := range store.List(t.Context(), blob.ListOptions{}) {
				require.NoError(t, err)
				part, _, err := store.Get(t.Context(), o.Key)
				require.NoError(t, err)
				require.NotContains(t, string(part), "hunt")
				require.NotContains(t, string(part), "canary")
			}
		}
	}
}

// The parts of a task that prints for hours occupy little space, because a log keeps only its beginning and its end.
func TestLogPartsKeepBeginningAndEnd(t *testing.T) {
	p, store := newParts(t, nil)
	const line = 100
	block, lines := &bytes.Buffer{}, 0
	for lines*line < 40<<20 {
		block.Reset()
		for range partBytes / line * 3 {
			fmt.Fprintf(block, "%0*d\n", line-1, lines)
			lines++
		}
		_, _ = p.a.output.Write(block.Bytes())
		p.read()
		p.store(t.Context())
	}
	text, count, size := storedParts(t, store, p)
	require.True(t, strings.HasPrefix(text, fmt.Sprintf("%0*d\n", line-1, 0)))
	require.True(t, strings.HasSuffix(text, fmt.Sprintf("%0*d\n", line-1, lines-1)))
	require.Equal(t, 1, strings.Count(text, "… text omitted …"))
	require.LessOrEqual(t, size, int64(2*logEnd+2*3*partBytes))
	require.GreaterOrEqual(t, size, int64(2*logEnd))
	require.Less(t, count, 2*logEnd/partBytes)
	deletes := 0
	p.a.w.cfg.Store = faultblob.New(store, func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Delete {
			deletes++
		}
		return faultblob.None
	})
	p.remove()
	require.LessOrEqual(t, deletes, count+1, "parts that were deleted before are not deleted again")
	_, count, _ = storedParts(t, store, p)
	require.Zero(t, count)
}

// The command of a check resolves secrets, and so replaces the mask of the attempt, while parts are still being
// stored. The parts must keep the earlier mask. Run this test with -race.
func TestLogPartsKeepTheirMask(t *testing.T) {
	p, store := newParts(t, secret.NewMask([]string{"old-canary"}))
	var logged bytes.Buffer
	p.a.log = slog.New(slog.NewTextHandler(&logged, nil))
	p.a.w.cfg.Store = faultblob.New(store, func(faultblob.Op, string) faultblob.Fault { return faultblob.FailBefore })
	p.a.env.TaskKey = "old-canary" // the error of the store contains this text
	p.a.w.cfg.Redactor = &secret.Redactor{}
	p.a.w.cfg.Secrets = func(context.Context, string) (string, error) { return "new-canary", nil }
	p.a.output.printf("text")
	p.read()
	var storing sync.WaitGroup
	begin := make(chan struct{})
	storing.Go(func() {
		<-begin
		p.store(t.Context())
	})
	close(begin)
	_, err := p.a.findSecrets(t.Context(), &work{Work: plan.Work{Secrets: map[string]string{"TOKEN": "file:token"}}})
	require.NoError(t, err)
	storing.Wait()
	p.failing = false
	p.store(t.Context())
	require.Equal(t, 2, strings.Count(logged.String(), "could not store a part"))
	require.Equal(t, 2, strings.Count(logged.String(), "***"), logged.String())
}
