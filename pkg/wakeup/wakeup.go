// Package wakeup stores the index of wakeups, and decides which wakeup a state needs. A wakeup is an empty object.
// Its key names a domain, and the minute from which on the domain needs a sweep. One listing up to the current minute
// returns all due wakeups and nothing else: neither future wakeups nor domains in which no work can get stuck. This
// package is not a stable API.
//
// A superfluous wakeup only causes a sweep that finds nothing. The domain's manifests ensure that no wakeup is
// missing: they record which wakeup a state needs, and which wakeups may be deleted. See [Schedule] and
// [manifest.Wakeup].
package wakeup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	// Prefix is the prefix of the keys of all wakeups.
	Prefix = "wakeups/"
	// layout is the format of the minute in a key, in UTC. Minutes in this format sort by time.
	layout = "20060102T1504"
)

// Wakeup means that a domain needs a sweep as soon as a minute has begun.
type Wakeup struct {
	At     event.Time // a whole minute
	Domain ids.Domain
}

// Key returns the object key of a wakeup.
func (m Wakeup) Key() string {
	return Prefix + m.At.Time().UTC().Format(layout) + "/" + m.Domain.Tenant + "/" + m.Domain.Workspace
}

// ParseKey returns the wakeup of an object key.
func ParseKey(key string) (Wakeup, error) {
	rest, below := strings.CutPrefix(key, Prefix)
	parts := strings.Split(rest, "/")
	if !below || len(parts) != 3 { //nolint:mnd // minute, tenant, workspace
		return Wakeup{}, fmt.Errorf("key %.400q is not the key of a wakeup", key)
	}
	at, err := time.Parse(layout, parts[0])
	m := Wakeup{At: event.At(at), Domain: ids.Domain{Tenant: parts[1], Workspace: parts[2]}}
	if err == nil {
		err = m.Domain.Validate()
	}
	if err != nil || m.Key() != key {
		return Wakeup{}, fmt.Errorf("key %.400q is not the key of a wakeup", key)
	}
	return m, nil
}

// Minute returns the start of the minute that contains t.
func Minute(t event.Time) event.Time { return event.At(t.Time().Truncate(time.Minute)) }

// List returns the wakeups up to the minute of the given time, oldest first. If no wakeup is due, List reads a single
// page of a listing, however many future wakeups exist.
func List(ctx context.Context, store blob.Store, until event.Time) ([]Wakeup, error) {
	var wakeups []Wakeup
	for object, err := range store.List(ctx, blob.ListOptions{Prefix: Prefix}) {
		if err != nil {
			return nil, fmt.Errorf("list wakeups: %w", err)
		}
		m, err := ParseKey(object.Key)
		if err != nil {
			continue // a stray object must not stop the sweep
		}
		if m.At > until {
			break
		}
		wakeups = append(wakeups, m)
	}
	return wakeups, nil
}

// Create stores a wakeup. It succeeds if the wakeup exists already.
func Create(ctx context.Context, store blob.Store, m Wakeup) error {
	if _, err := store.Create(ctx, m.Key(), nil); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("create wakeup of %s: %w", m.Domain, err)
	}
	return nil
}

// Delete deletes a wakeup. It succeeds if the wakeup is already deleted.
func Delete(ctx context.Context, store blob.Store, m Wakeup) error {
	if err := store.Delete(ctx, m.Key()); err != nil {
		return fmt.Errorf("delete wakeup %s: %w", m.Key(), err)
	}
	return nil
}
