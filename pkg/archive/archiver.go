package archive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

const (
	// day is what is archived together by default.
	day = 24 * time.Hour
	// maxBytes and maxEntries bound a file, and so what one call of Archive holds in
	// memory and how much it reads again after a crash.
	maxBytes   = 16 << 20
	maxEntries = 10_000
	// maxFileBytes is how large a file may be that is read.
	maxFileBytes = 64 << 20
	// workers is how many objects are read, or deleted, at once.
	workers = 16
	// maxYielded is how often in a row the work is left to another archiver: it may be
	// one that has died.
	maxYielded = 100
)

// Config is what an [Archiver] works with.
type Config struct {
	Domain ids.Domain
	Store  blob.Store
	Clock  clock.Clock
	// Logger is told of what is archived, and of what cannot be. It may be nil.
	Logger *slog.Logger
	// Span is what is archived together: entries wait until all of their span, counted
	// from 1970, lies below the cut; 0: a day.
	Span time.Duration
	// MaxBytes and MaxEntries bound a file, by what its entries have in the ledger;
	// 0: 16 MiB and 10,000.
	MaxBytes   int64
	MaxEntries int
}

// Archiver moves entries from the ledger to the archive. It remembers what is done;
// who begins with another one pays for one page of a listing. Any number of
// archivers may work on a domain, but each is for one goroutine at a time.
type Archiver struct {
	cfg Config

	done     string // nothing is left below it but what cannot be archived
	position string // in a sweep: the entry after which it goes on
	yielded  int    // calls in a row that left the work to another archiver
	wait     time.Duration
	resume   time.Time // after an error: when to try again
}

// After errors the archiver waits, longer each time: nothing waits for it, and a try
// may have to read much again.
const (
	firstWait = time.Minute
	lastWait  = time.Hour
)

// New makes the archiver of a domain.
func New(cfg Config) *Archiver {
	cfg.Span = cmp.Or(max(cfg.Span, 0), day)
	cfg.MaxBytes = cmp.Or(max(cfg.MaxBytes, 0), maxBytes)
	cfg.MaxEntries = cmp.Or(max(cfg.MaxEntries, 0), maxEntries)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Archiver{cfg: cfg}
}

// Due reports whether there may be anything to archive below a cut. It asks nobody.
func (a *Archiver) Due(cut string) bool {
	return a.floor(cut) > a.done && !a.cfg.Clock.Now().Before(a.resume)
}

// Archive moves entries below a cut to the archive: those of one file. It reports
// whether there are more, and may end anywhere, by an error too.
//
// Before anything is deleted it asks stands whether the cut still does.
func (a *Archiver) Archive(ctx context.Context, cut string, stands func(context.Context) (bool, error)) (more bool, err error) {
	if !a.Due(cut) {
		return false, nil
	}
	more, err = a.pass(ctx, a.floor(cut), stands)
	if err == nil {
		a.wait = 0
		return more, nil
	}
	if ctx.Err() == nil {
		a.wait = min(max(2*a.wait, firstWait), lastWait)
		a.resume = a.cfg.Clock.Now().Add(a.wait)
	}
	return false, fmt.Errorf("archive ledger of %s: %w", a.cfg.Domain, err)
}

// floor is where the span begins that a cut lies in, as the least id of its time.
func (a *Archiver) floor(cut string) string {
	if cut == "" {
		return ""
	}
	ms, span := ids.Time(cut).UnixMilli(), max(a.cfg.Span.Milliseconds(), 1)
	return ids.AtTime(time.UnixMilli(ms - ms%span))
}

func (a *Archiver) pass(ctx context.Context, until string, stands func(context.Context) (bool, error)) (more bool, err error) {
	names, more, err := a.list(ctx, until)
	if err != nil {
		return false, err
	}
	entries, gone, err := a.read(ctx, names)
	if err != nil {
		return false, err
	}
	if gone && a.yielded < maxYielded { // what was read is in another's file, or soon will be
		a.yielded++
		return true, nil
	}
	a.yielded = 0
	if len(entries) > 0 {
		archived, err := a.write(ctx, entries)
		if err != nil {
			return false, err
		}
		if len(archived) == 0 { // its name is another's: it stays where it is
			a.position = entries[0].ID
			return true, nil
		}
		if ok, err := stands(ctx); err != nil || !ok {
			return false, err
		}
		if err := a.remove(ctx, archived); err != nil {
			return false, err
		}
		if len(archived) < len(entries) {
			return true, nil // what the file lacks begins another
		}
	}
	if more {
		a.position = names[len(names)-1].Entry
		return true, nil
	}
	a.position, a.done = "", until
	return false, nil
}

// list names the entries of the next file: from where the last call ended, of one day
// and within the bounds.
func (a *Archiver) list(ctx context.Context, until string) (names []ledger.Name, more bool, err error) {
	size := int64(0)
	for name, err := range ledger.List(ctx, a.cfg.Store, a.cfg.Domain, a.position) {
		if err != nil {
			return nil, false, err
		}
		if name.Entry >= until {
			break
		}
		if name.Object.Size > ledger.MaxEntryBytes {
			a.cfg.Logger.WarnContext(ctx, "a ledger entry is too large for the archive: it stays in the ledger", slog.String("entry", name.Object.Key))
			continue
		}
		size += name.Object.Size
		if n := len(names); n > 0 && (n == a.cfg.MaxEntries || size > a.cfg.MaxBytes || dayOf(name.Entry) != dayOf(names[0].Entry)) {
			return names, true, nil
		}
		names = append(names, name)
	}
	return names, false, nil
}

// read reads entries, but for those that cannot be read now: they stay where they
// are, and are tried again when the next span is archived, or by another process. It
// reports whether some were gone: another archiver is at work on them.
func (a *Archiver) read(ctx context.Context, names []ledger.Name) (entries []Entry, gone bool, err error) {
	read, failures := make([]Entry, len(names)), make([]error, len(names))
	var g errgroup.Group
	g.SetLimit(workers)
	for i, name := range names {
		g.Go(func() error {
			data, err := ledger.Read(ctx, a.cfg.Store, ledger.Key(a.cfg.Domain, name.Entry))
			read[i], failures[i] = Entry{ID: name.Entry, Data: data}, err
			return nil
		})
	}
	_ = g.Wait() // none of them fails
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	var left []error
	away := 0
	for i, err := range failures {
		switch {
		case err == nil:
			entries = append(entries, read[i])
		case errors.Is(err, blob.ErrNotFound):
			gone = true
		default:
			left = append(left, err)
			if !errors.Is(err, ledger.ErrCorrupt) {
				away++
			}
		}
	}
	if len(entries) == 0 && away > 0 { // the store, it seems, and not the entries
		return nil, false, left[0]
	}
	if len(left) > 0 {
		a.cfg.Logger.WarnContext(ctx, "entries that cannot be read stay in the ledger and are not archived",
			slog.String("domain", a.cfg.Domain.String()), slog.Int("entries", len(left)), slog.Any("error", left[0]))
	}
	return entries, gone, nil
}

// write stores entries as a file, and gives those of them that a file holds: none, if
// the name is that of another one.
func (a *Archiver) write(ctx context.Context, entries []Entry) ([]Entry, error) {
	key := Key(a.cfg.Domain, entries[0].ID)
	data, err := Encode(entries)
	if err != nil {
		return nil, err
	}
	if err := same(data, entries); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	stored, err := a.cfg.Store.Create(ctx, key, data)
	switch {
	case errors.Is(err, blob.ErrExists):
		return a.held(ctx, entries)
	case err != nil: // what is there says whether it happened
		if held, readErr := a.held(ctx, entries); readErr == nil && len(held) > 0 {
			return held, nil
		}
		return nil, err
	case stored.CRC32C != blob.CRC32C(data):
		return nil, fmt.Errorf("%s: the store has stored other bytes", key)
	}
	a.cfg.Logger.InfoContext(ctx, "ledger entries archived", slog.String("domain", a.cfg.Domain.String()),
		slog.String("file", key), slog.Int("entries", len(entries)), slog.Int("bytes", len(data)))
	return entries, nil
}

// same holds what a file decodes to against what it was made of: soon it is all that
// there is.
func same(data []byte, entries []Entry) error {
	decoded, err := Decode(data)
	if err != nil {
		return err
	}
	equal := len(decoded) == len(entries)
	for i := 0; equal && i < len(entries); i++ {
		equal = decoded[i].ID == entries[i].ID && bytes.Equal(decoded[i].Data, entries[i].Data)
	}
	if !equal {
		return errors.New("the file that was made of the entries does not give them back")
	}
	return nil
}

// held are those of the entries that the file of their name holds: another archiver
// made it, or this one, whose answer was lost, or which died.
func (a *Archiver) held(ctx context.Context, entries []Entry) ([]Entry, error) {
	file, err := load(ctx, a.cfg.Store, a.cfg.Domain, entries[0].ID)
	if err != nil && !errors.Is(err, errDamaged) {
		return nil, err
	}
	var held []Entry
	for _, e := range entries {
		data, ok := find(file, e.ID)
		switch {
		case ok && bytes.Equal(data, e.Data):
			held = append(held, e)
		case ok:
			err = cmp.Or(err, fmt.Errorf("entry %s: %w: it has other bytes there", e.ID, errDamaged))
		}
	}
	if err != nil {
		a.cfg.Logger.ErrorContext(ctx, "an archive file does not hold what it should: what the ledger still has stays there",
			slog.String("domain", a.cfg.Domain.String()), slog.Any("error", err))
	}
	if len(held) == 0 || held[0].ID != entries[0].ID {
		return nil, nil
	}
	return held, nil
}

// remove deletes entries from the ledger, and the first one last: until all are gone,
// whoever archives what is left begins with the same name.
func (a *Archiver) remove(ctx context.Context, entries []Entry) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for _, e := range entries[1:] {
		g.Go(func() error { return a.cfg.Store.Delete(gctx, ledger.Key(a.cfg.Domain, e.ID)) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return a.cfg.Store.Delete(ctx, ledger.Key(a.cfg.Domain, entries[0].ID))
}
