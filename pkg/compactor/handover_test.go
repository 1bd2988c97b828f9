package compactor_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// This test fails if the compactor reads entries that were handed over, or if the client omits
// their content.
func TestHandoverIncludesContent(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	mux := http.NewServeMux()
	remote.Register(mux, func(context.Context, ids.Domain) (*compactor.Compactor, error) { return c, nil })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { mux.ServeHTTP(w, granted(r)) }))
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b"))
	other := w.append(w.Finished(run, "a", 1, event.Succeeded))
	bad := w.append(w.Finished(run, "b", 1, event.Succeeded))
	other.Data = nil // the compactor must read the content from the store
	bad.Data = append(bad.Data, 0xff)

	var mu sync.Mutex
	var read []string
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		mu.Lock()
		defer mu.Unlock()
		if op == faultblob.Get && strings.HasPrefix(key, "ledger/") {
			read = append(read, key)
		}
		return faultblob.None
	})
	client := &remote.Client{Domain: foldtest.Domain, URL: server.URL, HTTP: server.Client()}
	result, err := client.Compact(t.Context(), compactor.Request{Entries: []compactor.Entry{entry, other, bad}})
	require.NoError(t, err)
	require.Equal(t, 3, result.Folded)
	require.ElementsMatch(t, []string{ledger.Key(foldtest.Domain, other.ID), ledger.Key(foldtest.Domain, bad.ID)}, read,
		"what JSON does not carry unchanged is read, too")
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED"}, w.states(c, run))

	// A request that would be too large is sent without content.
	huge := []compactor.Entry{{ID: entry.ID, Data: bytes.Repeat([]byte("<\""), 500_000), Proof: entry.Proof}}
	result, err = client.Compact(t.Context(), compactor.Request{Entries: huge})
	require.NoError(t, err)
	require.Zero(t, result.Folded)
	crc := fmt.Sprint(blob.CRC32C([]byte("x")))
	good := `{"data":"x","version":1,"crc32c":` + crc + `}`
	for _, data := range []string{
		`{"3":` + good + `}`, `{"-1":` + good + `}`, `{"0":{"data":"","version":1,"crc32c":0}}`, `{"0":"x"}`,
		`{"0":{"data":"x","crc32c":` + crc + `}}`, `{"0":{"data":"x","version":1,"crc32c":1}}`, `{"0":{"data":"x","version":1}}`,
	} {
		body := `{"tenant":"acme","workspace":"prod","entries":["` + entry.ID + `"],"data":` + data + `}`
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, granted(httptest.NewRequest(http.MethodPost, "/v1/compact", strings.NewReader(body))))
		require.Equal(t, http.StatusBadRequest, answer.Code, data)
	}
	for _, more := range []string{`"data":{"0":` + good + `}`, `"sweep":true`, `"through":"2026-11-21T00:00:00Z"`} {
		body := `{"tenant":"acme","workspace":"prod","entries":["` + entry.ID + `"],` + more + `}`
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/v1/compact", strings.NewReader(body)))
		require.Equal(t, http.StatusForbidden, answer.Code, more)
	}
	stop()
	require.NoError(t, <-ended)
	w.verify()
}

// granted returns a request whose caller has every right.
func granted(r *http.Request) *http.Request {
	return r.WithContext(remote.WithRights(r.Context(), remote.Rights{Data: true, Sweep: true}))
}

func TestHandedOverBytesAreFoldedOnlyAsStored(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c"))
	heads := w.counts(func(op faultblob.Op, key string) bool {
		return op == faultblob.Head && strings.HasPrefix(key, "ledger/")
	})
	w.step(c, entry)
	require.EqualValues(t, 1, heads.Load(), "one HEAD for each entry, and no read")

	// The stored entry says that the task failed; a handed-over success is not folded.
	truth := w.append(w.Finished(run, "a", 1, event.Failed))
	lie := truth
	lie.Data = bytes.Replace(truth.Data, []byte("failed"), []byte("succeeded"), 1)
	require.NotEqual(t, truth.Data, lie.Data)
	lie.Proof.CRC32C = blob.CRC32C(lie.Data)
	w.step(c, lie)
	require.Equal(t, "a=FAILED", w.states(c, run)[0])

	// A proof with another version than the stored object proves nothing.
	other := w.append(w.Finished(run, "b", 1, event.Succeeded))
	other.Data = bytes.Replace(other.Data, []byte("succeeded"), []byte("cancelled"), 1)
	other.Proof.Version++
	w.step(c, other)
	require.Equal(t, "b=SUCCEEDED", w.states(c, run)[1])

	// An entry that was never stored is not folded, for any caller.
	never := lie
	never.ID = w.ids.New()
	require.Zero(t, w.step(c, never).Folded)

	// If HEAD requests fail, the compactor reads the entry from the store and folds it.
	last := w.append(w.Finished(run, "c", 1, event.Succeeded))
	w.faults(func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Head {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	w.step(c, last)
	require.Equal(t, "c=SUCCEEDED", w.states(c, run)[2])
	w.verify()
}
