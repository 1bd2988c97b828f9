package engine

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
)

// LogParts reads the parts of a log that a worker stores while a command runs. The zero value starts at the first
// part.
type LogParts struct {
	// nonce is the nonce of the execution whose parts are read. number is the number of the last part that was read, and
	// read is how many bytes of this part were returned.
	nonce  string
	number int
	read   int
	// at is when the newest part of the execution was stored. left contains the nonces of executions from which the
	// reader has switched to another one.
	at   time.Time
	left map[string]bool
	// Restarted is set by Next if the returned text is the beginning of the log of another execution of the attempt.
	Restarted bool
}

// omittedPart is shown in place of parts that the worker has deleted, because a log keeps only its beginning and its
// end.
const omittedPart = "\n… text omitted …\n"

// Next returns the text that the worker has stored since the last call. If the attempt was executed more than once,
// Next switches to the execution that stored the newest part. It never switches back to an earlier execution: while
// two executions write, it would otherwise return both texts again and again.
func (l *LogParts) Next(ctx context.Context, store blob.Store, logKey string) ([]byte, error) {
	parts, err := l.list(ctx, store, logKey)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, p := range parts {
		if p.number < l.number {
			continue
		}
		data, _, err := store.Get(ctx, p.key)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			continue // the worker has deleted the part in the meantime
		case err != nil:
			return nil, err //nolint:wrapcheck // the caller names the log in the error
		}
		switch {
		case p.number > l.number+1:
			text.WriteString(omittedPart)
			l.read = 0
		case p.number > l.number:
			l.read = 0
		}
		l.number = p.number
		if len(data) > l.read { // a part can grow, but never shrinks
			text.Write(data[l.read:])
			l.read = len(data)
		}
	}
	return text.Bytes(), nil
}

// logPart is a part of a log.
type logPart struct {
	key    string
	number int
}

// list returns the parts of the execution that stored the newest part, in their order.
func (l *LogParts) list(ctx context.Context, store blob.Store, logKey string) ([]logPart, error) {
	parts := map[string][]logPart{} // by nonce
	// Begin with the current execution, because its newest part may no longer be in the listing: parts are deleted when
	// the whole log is stored.
	newest, at := l.nonce, l.at
	for o, err := range store.List(ctx, blob.ListOptions{Prefix: logKey + "."}) {
		if err != nil {
			return nil, err //nolint:wrapcheck // the caller names the log in the error
		}
		nonce, number, ok := contract.ParseLogPartKey(logKey, o.Key)
		if !ok || l.left[nonce] {
			continue
		}
		parts[nonce] = append(parts[nonce], logPart{o.Key, number})
		if newest == "" || !o.Updated.Before(at) { // if the times are equal, the later nonce is newer: nonces are ULIDs, and the listing is sorted
			newest, at = nonce, o.Updated
		}
	}
	if l.Restarted = newest != l.nonce && l.nonce != ""; l.Restarted {
		if l.left == nil {
			l.left = map[string]bool{}
		}
		l.left[l.nonce] = true
		l.number, l.read = 0, 0
	}
	l.nonce, l.at = newest, at
	return parts[newest], nil
}
