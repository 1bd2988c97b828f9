package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
)

// partsOfLog is a store with the first part of each execution of an attempt, and a reader that follows them.
type partsOfLog struct {
	t      *testing.T
	now    time.Time
	store  *memblob.Store
	reader engine.LogParts
}

func newPartsOfLog(t *testing.T) *partsOfLog {
	t.Helper()
	p := &partsOfLog{t: t, now: time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)}
	p.store = memblob.New(memblob.Options{Now: func() time.Time { return p.now }})
	return p
}

func (p *partsOfLog) put(nonce, text string) {
	p.t.Helper()
	p.now = p.now.Add(time.Second)
	_, err := p.store.Put(p.t.Context(), contract.LogPartKey("a.log", nonce, 1), []byte(text))
	require.NoError(p.t, err)
}

// next checks the next text that the reader returns, and whether the reader has switched to another execution.
func (p *partsOfLog) next(want string, restarted bool) {
	p.t.Helper()
	text, err := p.reader.Next(p.t.Context(), p.store, "a.log")
	require.NoError(p.t, err)
	require.Equal(p.t, want, string(text))
	require.Equal(p.t, restarted, p.reader.Restarted)
}

func TestLogPartsDoNotReturnToAnExecution(t *testing.T) {
	p := newPartsOfLog(t)
	p.put("n1", "a")
	p.next("a", false)
	p.put("n2", "x")
	p.next("x", true)
	p.put("n1", "ab") // both executions are writing
	p.next("", false)
	p.put("n2", "xy")
	p.next("y", false)
	p.put("n1", "abc")
	p.put("n3", "new")
	p.next("new", true)
}

func TestLogPartsDoNotGoBackToAnEarlierExecution(t *testing.T) {
	p := newPartsOfLog(t)
	p.put("n1", "of a killed worker")
	p.put("n2", "x")
	p.next("x", false)
	require.NoError(t, p.store.Delete(t.Context(), contract.LogPartKey("a.log", "n2", 1))) // the whole log has been stored
	p.next("", false)
	p.put("n3", "new")
	p.next("new", true)
}
