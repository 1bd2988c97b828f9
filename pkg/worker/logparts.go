package worker

import (
	"bytes"
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/secret"
)

// While a command runs, the worker stores its output in parts. If the worker is killed, the parts show what the command
// printed. A worker stores parts only in a local store, because each write to a cloud store costs money. No decision
// depends on parts, so a failed write is not an error: the worker tries again after [LogPartInterval], and adds the
// text that has arrived by then.

const (
	// LogPartInterval is how long new text waits before it is stored. `servo logs -f` looks for new parts every second,
	// so it shows a line within 2.5 seconds after it was printed.
	LogPartInterval = 1500 * time.Millisecond
	// partBytes is the size at which a part is complete. A smaller part is stored again with the text that follows,
	// so that a long task has few parts.
	partBytes = 64 << 10
)

// logParts stores the parts of the log of one execution. Only one goroutine uses it at a time: first the one that
// executes [logParts.run]; then, when [logParts.end] has returned, the goroutine of the attempt.
type logParts struct {
	a      *attempt
	mask   *secret.Mask   // a copy, because the command of a check replaces the mask of the attempt
	masked *secret.Writer // writes to text
	text   bytes.Buffer   // the incomplete part, with secrets masked; the store may contain an earlier state of this part
	at     int64          // the offset of the next text in the log
	begin  int64          // the offset of the part in the log
	number int            // the number of the incomplete part
	// The parts that contain the first logEnd bytes of the log are kept until the whole log is stored. The later parts may
	// be deleted earlier: see drop. Among the later parts, the first one has the number first, and the oldest one that
	// still exists has the number oldest. sizes are the sizes of the complete parts from oldest on, and kept is the sum of
	// these sizes.
	first  int
	oldest int
	sizes  []int
	kept   int

	failing bool // the last part could not be stored
	stop    func()
}

// storeParts starts to store the log in parts if the store is local. It is called when the task's secrets are known
// and can be masked.
func (a *attempt) storeParts() {
	if _, local := a.w.cfg.Store.(blob.Local); !local || a.output.parts != nil {
		return
	}
	a.output.parts = a.newParts()
	a.output.parts.stop = background(a.job.life, a.output.parts.run)
}

func (a *attempt) newParts() *logParts {
	p := &logParts{a: a, mask: a.mask, number: 1}
	p.masked = p.mask.Writer(&p.text)
	return p
}

// end stops storing parts, because the whole log will replace them.
func (p *logParts) end() {
	if p != nil {
		p.stop()
	}
}

// run stores the text of the log until the log is complete or ctx is done. When new text arrives, run waits for
// [LogPartInterval] and then stores all new text. It does nothing while the command prints nothing.
func (p *logParts) run(ctx context.Context) {
	for p.await(ctx) && p.a.w.cfg.Clock.Sleep(ctx, LogPartInterval) == nil {
		p.read()
		p.store(ctx)
	}
}

// await waits until the log has more text, or until it is time to store a failed part again. It returns false if the
// log is complete or ctx is done.
func (p *logParts) await(ctx context.Context) bool {
	if p.failing {
		return ctx.Err() == nil
	}
	text, _, more := p.a.output.read(p.at, 1)
	switch {
	case len(text) > 0:
		return true
	case more == nil:
		return false
	}
	select {
	case <-more:
		return true
	case <-ctx.Done():
		return false
	}
}

// read adds the new text of the log to the part. The mask holds back text at the end that may be the beginning of a
// secret. If a command prints without a pause, read stops when the part has logEnd bytes, and the next call
// continues.
func (p *logParts) read() {
	for p.text.Len() < logEnd {
		text, next, _ := p.a.output.read(p.at, followChunk)
		if len(text) == 0 {
			return
		}
		_, _ = p.masked.Write(text) // writing to a buffer cannot fail
		p.at = next
	}
}

// store stores the part. If the part is complete, store then begins the next one.
func (p *logParts) store(ctx context.Context) {
	if p.text.Len() == 0 {
		return // the mask holds back all text: it may be the beginning of a secret
	}
	key := contract.LogPartKey(p.a.logKey(), p.a.nonce, p.number)
	if _, err := p.a.w.cfg.Store.Put(ctx, key, p.text.Bytes()); err != nil {
		if !p.failing && ctx.Err() == nil {
			p.a.log.WarnContext(ctx, "could not store a part of the log; will try again", "key", key, "error", p.mask.String(err.Error()))
		}
		p.failing = true
		return
	}
	p.failing = false
	if p.text.Len() < partBytes {
		return
	}
	if p.begin >= logEnd {
		p.drop(ctx)
	}
	p.number++
	p.text.Reset()
	p.begin = p.at
}

// drop is called for each complete part after the beginning of the log, and records the size of this part. A log
// keeps only its beginning and its end, so drop then deletes the oldest recorded parts, as long as the remaining ones
// contain the end.
func (p *logParts) drop(ctx context.Context) {
	if len(p.sizes) == 0 {
		p.first, p.oldest = p.number, p.number
	}
	p.sizes, p.kept = append(p.sizes, p.text.Len()), p.kept+p.text.Len()
	for p.kept-p.sizes[0] >= logEnd {
		if !p.delete(ctx, p.oldest) {
			return // drop retries the deletion after the next part
		}
		p.kept -= p.sizes[0]
		p.sizes, p.oldest = p.sizes[1:], p.oldest+1
	}
}

// remove deletes all parts. It is called when the whole log is stored or reported. If a part cannot be deleted, the
// retention of logs deletes it later.
func (p *logParts) remove() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.a.job.life, deleteTimeout)
	defer cancel()
	for n := p.number; n > 0; n-- {
		if n >= p.first && n < p.oldest {
			continue // drop has deleted it
		}
		if !p.delete(ctx, n) {
			return
		}
	}
}

// removeAll deletes the parts of all executions of the attempt. It is called if this execution printed nothing.
// Otherwise, the parts of an earlier execution whose worker was killed would appear as the log of the attempt.
func (p *logParts) removeAll() {
	ctx, cancel := context.WithTimeout(p.a.job.life, deleteTimeout)
	defer cancel()
	logKey := p.a.logKey()
	var keys []string
	for o, err := range p.a.w.cfg.Store.List(ctx, blob.ListOptions{Prefix: logKey + "."}) {
		if err != nil {
			p.a.log.WarnContext(ctx, "could not list the parts of the log", "key", logKey, "error", p.mask.String(err.Error()))
			return
		}
		if _, _, ok := contract.ParseLogPartKey(logKey, o.Key); ok {
			keys = append(keys, o.Key)
		}
	}
	for _, key := range keys {
		if !p.deleteKey(ctx, key) {
			return
		}
	}
}

func (p *logParts) delete(ctx context.Context, number int) bool {
	return p.deleteKey(ctx, contract.LogPartKey(p.a.logKey(), p.a.nonce, number))
}

func (p *logParts) deleteKey(ctx context.Context, key string) bool {
	err := p.a.w.cfg.Store.Delete(ctx, key)
	if err != nil && ctx.Err() == nil {
		p.a.log.WarnContext(ctx, "could not delete a part of the log", "key", key, "error", p.mask.String(err.Error()))
	}
	return err == nil
}
