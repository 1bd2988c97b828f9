package publisher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// StatusFile is the name of a file in the state folder. It lists the published places that Servo keeps up to date.
const StatusFile = "published.json"

// Place is a published place to keep up to date.
type Place struct {
	// Name is the path of the place as the user has written it.
	Name string
	// Record is the absolute path of the place's record.
	Record string
	// Update makes the place show the outputs of assets, and reports whether it changed the place. If the outputs of an
	// asset could not be read, Update returns [Asset.Unread].
	Update func(ctx context.Context, assets []Asset, revision int64, now event.Time) (changed bool, err error)
}

// Status is the entry of a place in [StatusFile].
type Status struct {
	Domain string `json:"domain"`
	Name   string `json:"name"`
	Record string `json:"record"`
	// Revision is the newest revision that the place has shown completely. UpdatedAt is the time of the update to that
	// revision.
	Revision  int64      `json:"revision"`
	UpdatedAt event.Time `json:"updated_at,omitzero"`
	// Error is the reason why the last update failed. It is empty if the last update succeeded. FailingSince is the
	// time of the first failure after the last success.
	Error        string     `json:"error,omitempty"`
	FailingSince event.Time `json:"failing_since,omitzero"`
	// Assets maps the key of each published asset to its name at this place.
	Assets map[string]string `json:"assets"`
}

// Path returns the absolute path of the folder or the DuckDB file.
func (s *Status) Path() string { return strings.TrimSuffix(filepath.Dir(s.Record), LinksOf("")) }

// ReadStatus returns the places of a domain that the processes of a state folder keep up to date.
func ReadStatus(dir, domain string) ([]Status, error) {
	all, err := readStatus(dir)
	return slices.DeleteFunc(all, func(s Status) bool { return s.Domain != domain }), err
}

func readStatus(dir string) ([]Status, error) {
	data, err := os.ReadFile(filepath.Join(dir, StatusFile)) //nolint:gosec // a file of the state folder
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the published places: %w", err)
	}
	var all []Status
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, &DamagedError{filepath.Join(dir, StatusFile)}
	}
	return all, nil
}

// DamagedError reports that the record of published places cannot be read. The next pass of a [Publisher]
// writes it again.
type DamagedError struct{ File string }

// Error implements error.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s is damaged: the published places are not known until the next `servo run` or `servo dev`, which writes it again", e.File)
}

// NamedIn returns the materializations that readers of a domain's published places may find. The collector must not
// delete them.
func NamedIn(dir, domain string) (map[string]bool, error) {
	places, err := ReadStatus(dir, domain)
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, p := range places {
		if err := Named(p.Record, named); err != nil {
			return nil, fmt.Errorf("read the record of the published place %s: %w", p.Name, err)
		}
	}
	return named, nil
}

// Publisher keeps the places of a domain up to date. One process at a time may use it: the owner of
// the state folder.
type Publisher struct {
	// Dir is the state folder.
	Dir, Domain string
	Now         func() event.Time
}

// Publish makes all places show the outputs of a snapshot, and records the result in [StatusFile]. If the update of a
// place fails, the other places are still updated. If a place is no longer in places, Publish leaves it unchanged, but
// the collector no longer keeps its outputs.
func (p *Publisher) Publish(ctx context.Context, snap *snapshot.Snapshot, places []Place, assets []Asset) error {
	all, err := readStatus(p.Dir)
	damaged := errors.As(err, new(*DamagedError))
	switch {
	case damaged:
		all = nil // start with an empty list, to which every domain adds its places again
	case err != nil:
		return err
	}
	before := len(all)
	all = slices.DeleteFunc(all, func(s Status) bool {
		return s.Domain == p.Domain && !slices.ContainsFunc(places, func(place Place) bool { return place.Record == s.Record })
	})
	if len(places) == 0 && before == len(all) && !damaged {
		return nil
	}
	// Save the list before the updates below: the collector must know a place before readers find outputs there.
	kept := len(all)
	for i := range places {
		p.statusOf(&all, &places[i], assets)
	}
	if kept != before || kept != len(all) {
		if err := p.save(all); err != nil {
			return err
		}
	}
	for i := range assets {
		_ = assets[i].Load(ctx, snap) // each update below returns the error
	}
	var failed []error
	for i := range places {
		s := p.statusOf(&all, &places[i], assets)
		_, err := places[i].Update(ctx, assets, snap.Revision, p.Now())
		now := p.Now()
		if err == nil {
			s.Revision, s.UpdatedAt, s.Error, s.FailingSince = snap.Revision, now, "", 0
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(append(failed, err)...)
		}
		failed = append(failed, err)
		if s.Error = err.Error(); s.FailingSince == 0 {
			s.FailingSince = now
		}
	}
	return errors.Join(append(failed, p.save(all))...)
}

// statusOf returns the status of a place, and adds it if it is new.
func (p *Publisher) statusOf(all *[]Status, place *Place, assets []Asset) *Status {
	at := slices.IndexFunc(*all, func(s Status) bool { return s.Domain == p.Domain && s.Record == place.Record })
	if at < 0 {
		at = len(*all)
		*all = append(*all, Status{Domain: p.Domain, Record: place.Record})
	}
	s := &(*all)[at]
	s.Name, s.Assets = place.Name, map[string]string{}
	for i := range assets {
		s.Assets[assets[i].Key] = assets[i].Name
	}
	return s
}

// save writes [StatusFile].
func (p *Publisher) save(all []Status) error {
	data, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("record the published places: %w", err)
	}
	name := filepath.Join(p.Dir, StatusFile)
	if err = os.WriteFile(name+".new", append(data, '\n'), 0o644); err == nil { //nolint:gosec // users who may read the state folder
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("record the published places: %w", err)
	}
	return nil
}
