// Package due is the index of the domains that call for attention. A marker is an
// object whose name says all that there is to say: that a domain is to be swept in
// some minute, or later. One listing up to the present tells of all of them, and of
// nothing else: what lies ahead, and domains in which nothing can get stuck, it does
// not meet.
//
// A marker may always be one too many: it costs a sweep that finds nothing. That there
// is never one too few is kept by the domain's manifests, which say which marker stands
// for a state, and which may be deleted: see [manifest.Due].
package due

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
	// Prefix is what the keys of all markers begin with.
	Prefix = "due/"
	// layout is of the minute in a key, in UTC: it sorts as time does.
	layout = "20060102T1504"
)

// Marker says that a domain is to be swept.
type Marker struct {
	At     event.Time // a whole minute
	Domain ids.Domain
}

// Key is the marker's object key.
func (m Marker) Key() string {
	return Prefix + m.At.Time().UTC().Format(layout) + "/" + m.Domain.Tenant + "/" + m.Domain.Workspace
}

// ParseKey is the marker of a key.
func ParseKey(key string) (Marker, error) {
	rest, below := strings.CutPrefix(key, Prefix)
	parts := strings.Split(rest, "/")
	if !below || len(parts) != 3 { //nolint:mnd // minute, tenant, workspace
		return Marker{}, fmt.Errorf("key %.400q is not that of a marker", key)
	}
	at, err := time.Parse(layout, parts[0])
	m := Marker{At: event.At(at), Domain: ids.Domain{Tenant: parts[1], Workspace: parts[2]}}
	if err == nil {
		err = m.Domain.Validate()
	}
	if err != nil || m.Key() != key {
		return Marker{}, fmt.Errorf("key %.400q is not that of a marker", key)
	}
	return m, nil
}

// Minute is the minute that a time lies in.
func Minute(t event.Time) event.Time { return event.At(t.Time().Truncate(time.Minute)) }

// List gives the markers up to the minute that a time lies in, oldest first. Where
// there are none that is one page of a listing, however many lie ahead.
func List(ctx context.Context, store blob.Store, until event.Time) ([]Marker, error) {
	var markers []Marker
	for object, err := range store.List(ctx, blob.ListOptions{Prefix: Prefix}) {
		if err != nil {
			return nil, fmt.Errorf("list domains that are due: %w", err)
		}
		m, err := ParseKey(object.Key)
		if err != nil {
			continue // a stray object must not stop the sweep
		}
		if m.At > until {
			break
		}
		markers = append(markers, m)
	}
	return markers, nil
}

// Create stores a marker. That it is there already is as good.
func Create(ctx context.Context, store blob.Store, m Marker) error {
	if _, err := store.Create(ctx, m.Key(), nil); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("mark %s as due: %w", m.Domain, err)
	}
	return nil
}

// Delete deletes a marker. That it is gone already is as good.
func Delete(ctx context.Context, store blob.Store, m Marker) error {
	if err := store.Delete(ctx, m.Key()); err != nil {
		return fmt.Errorf("delete marker %s: %w", m.Key(), err)
	}
	return nil
}
