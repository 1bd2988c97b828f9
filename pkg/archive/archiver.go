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
	// day is the default of Config.Span.
	day = 24 * time.Hour
	// maxBytes and maxEntries are the default limits of a file. They also limit the memory
	// of one call of Archive, and how much an archiver reads again after a crash.
	maxBytes   = 16 << 20
	maxEntries = 10_000
	// maxFileBytes is the maximum size of a file that is read.
	maxFileBytes = 64 << 20
	// workers is how many objects are read or deleted in parallel.
	workers = 16
	// maxYields is how many consecutive calls may leave the work to another archiver. After that, the other archiver
	// is assumed dead.
	maxYields = 100
)

// Config configures an [Archiver].
type Config struct {
	Domain ids.Domain
	Store  blob.Store
	Clock  clock.Clock
	// Logger logs the entries that were archived, and the entries that cannot be archived. It may be nil.
	Logger *slog.Logger
	// Span is the length of the periods that are archived as a whole: an entry stays in the ledger until its whole
	// period is below the cutoff. Periods are aligned to 1970. 0: a day.
	Span time.Duration
	// MaxBytes limits the sum of the sizes that the entries of one file have in the ledger; 0: 16 MiB. MaxEntries
	// limits their number; 0: 10,000.
	MaxBytes   int64
	MaxEntries int
}

// Archiver moves entries from the ledger to the archive. It remembers its progress in memory. A new archiver finds its
// place with a listing of one page. Any number of archivers may work on a domain, but each one must be used by one
// goroutine at a time.
type Archiver struct {
	cfg Config

	done     string // all entries below this id are archived, except those that cannot be archived
	position string // the entry after which the next file starts
	yields   int    // consecutive calls that left the work to another archiver
	backoff  time.Duration
	resume   time.Time // after an error, no call of Archive does anything before this time
}

// After errors, the archiver backs off for up to an hour: its work is not urgent, and an
// attempt may read many entries again.
const (
	firstBackoff = time.Minute
	lastBackoff  = time.Hour
)

// New returns the archiver of a domain.
func New(cfg Config) *Archiver {
	cfg.Span = cmp.Or(max(cfg.Span, 0), day)
	cfg.MaxBytes = cmp.Or(max(cfg.MaxBytes, 0), maxBytes)
	cfg.MaxEntries = cmp.Or(max(cfg.MaxEntries, 0), maxEntries)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Archiver{cfg: cfg}
}

// Due reports whether entries below the cutoff may need archiving. It makes no request.
func (a *Archiver) Due(cutoff string) bool {
	return a.floor(cutoff) > a.done && !a.cfg.Clock.Now().Before(a.resume)
}

// Archive archives one file of entries below the cutoff, and reports whether more remain. It may be interrupted at any
// point.
//
// Before Archive deletes an entry, it calls the parameter stands, a function that reports whether the cutoff is still
// valid.
func (a *Archiver) Archive(ctx context.Context, cutoff string, stands func(context.Context) (bool, error)) (more bool, err error) {
	if !a.Due(cutoff) {
		return false, nil
	}
	more, err = a.pass(ctx, a.floor(cutoff), stands)
	if err == nil {
		a.backoff = 0
		return more, nil
	}
	if ctx.Err() == nil {
		a.backoff = min(max(2*a.backoff, firstBackoff), lastBackoff)
		a.resume = a.cfg.Clock.Now().Add(a.backoff)
	}
	return false, fmt.Errorf("archive ledger of %s: %w", a.cfg.Domain, err)
}

// floor returns the least id of the span that contains the cutoff.
func (a *Archiver) floor(cutoff string) string {
	if cutoff == "" {
		return ""
	}
	ms, span := ids.Time(cutoff).UnixMilli(), max(a.cfg.Span.Milliseconds(), 1)
	return ids.AtTime(time.UnixMilli(ms - ms%span))
}

// pass archives the entries of the next file. All these entries are below the parameter "until".
func (a *Archiver) pass(ctx context.Context, until string, stands func(context.Context) (bool, error)) (more bool, err error) {
	names, more, err := a.list(ctx, until)
	if err != nil {
		return false, err
	}
	entries, contended, err := a.read(ctx, names)
	if err != nil {
		return false, err
	}
	if contended && a.yields < maxYields { // another archiver is moving these entries
		a.yields++
		return true, nil
	}
	a.yields = 0
	if len(entries) > 0 {
		archived, err := a.write(ctx, entries)
		if err != nil {
			return false, err
		}
		if len(archived) == 0 { // a file with this name exists, but lacks the first entry: skip that entry
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
			return true, nil // the next file starts with the remaining entries
		}
	}
	if more {
		a.position = names[len(names)-1].Entry
		return true, nil
	}
	a.position, a.done = "", until
	return false, nil
}

// list returns the names of the entries for the next file: after a.position, of one day, and within the limits of a
// file.
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
			a.cfg.Logger.WarnContext(ctx, "ledger entry is too large for the archive and stays in the ledger", slog.String("entry", name.Object.Key))
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

// read reads entries. It skips unreadable entries, which stay in the ledger. The archiver reads them again when it
// archives the next span. contended is true if some of the entries were deleted meanwhile, so that another archiver
// must be working on them.
func (a *Archiver) read(ctx context.Context, names []ledger.Name) (entries []Entry, contended bool, err error) {
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
	_ = g.Wait() // always nil: errors are in failures
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	var unreadable []error
	storeErrors := 0
	for i, err := range failures {
		switch {
		case err == nil:
			entries = append(entries, read[i])
		case errors.Is(err, blob.ErrNotFound):
			contended = true
		default:
			unreadable = append(unreadable, err)
			if !errors.Is(err, ledger.ErrCorrupt) {
				storeErrors++
			}
		}
	}
	if len(entries) == 0 && storeErrors > 0 { // the store is unavailable; the entries themselves are probably intact
		return nil, false, unreadable[0]
	}
	if len(unreadable) > 0 {
		a.cfg.Logger.WarnContext(ctx, "unreadable entries stay in the ledger and are not archived",
			slog.String("domain", a.cfg.Domain.String()), slog.Int("entries", len(unreadable)), slog.Any("error", unreadable[0]))
	}
	return entries, contended, nil
}

// write stores entries as a file and returns those of the entries that the file contains. If a file with this name
// already exists, write does not replace it. The existing file may lack some of the entries. If it lacks the first one,
// write returns no entries.
func (a *Archiver) write(ctx context.Context, entries []Entry) ([]Entry, error) {
	key := Key(a.cfg.Domain, entries[0].ID)
	data, err := Encode(entries)
	if err != nil {
		return nil, err
	}
	if err := verify(data, entries); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	stored, err := a.cfg.Store.Create(ctx, key, data)
	switch {
	case errors.Is(err, blob.ErrExists):
		return a.archived(ctx, entries)
	case err != nil: // the response may be lost: read whether the file was created
		if archived, readErr := a.archived(ctx, entries); readErr == nil && len(archived) > 0 {
			return archived, nil
		}
		return nil, err
	case stored.CRC32C != blob.CRC32C(data):
		return nil, fmt.Errorf("%s: the stored file has another checksum", key)
	}
	a.cfg.Logger.InfoContext(ctx, "ledger entries archived", slog.String("domain", a.cfg.Domain.String()),
		slog.String("file", key), slog.Int("entries", len(entries)), slog.Int("bytes", len(data)))
	return entries, nil
}

// verify checks that an encoded file decodes to the given entries, because the ledger's copies will be deleted.
func verify(data []byte, entries []Entry) error {
	decoded, err := Decode(data)
	if err != nil {
		return err
	}
	equal := len(decoded) == len(entries)
	for i := 0; equal && i < len(entries); i++ {
		equal = decoded[i].ID == entries[i].ID && bytes.Equal(decoded[i].Data, entries[i].Data)
	}
	if !equal {
		return errors.New("the encoded file does not decode to the same entries")
	}
	return nil
}

// archived returns those of the given entries that are in the existing file with the name of the first entry. Another
// archiver created the file, or this one did before it crashed or lost the response. archived returns no entries if the
// file does not contain the first entry.
func (a *Archiver) archived(ctx context.Context, entries []Entry) ([]Entry, error) {
	file, err := load(ctx, a.cfg.Store, a.cfg.Domain, entries[0].ID)
	if err != nil && !errors.Is(err, errDamaged) {
		return nil, err
	}
	var archived []Entry
	for _, e := range entries {
		data, ok := find(file, e.ID)
		switch {
		case ok && bytes.Equal(data, e.Data):
			archived = append(archived, e)
		case ok:
			err = cmp.Or(err, fmt.Errorf("entry %s: %w: it differs from the ledger", e.ID, errDamaged))
		}
	}
	if err != nil {
		a.cfg.Logger.ErrorContext(ctx, "archive file is damaged; entries that it should contain stay in the ledger",
			slog.String("domain", a.cfg.Domain.String()), slog.Any("error", err))
	}
	if len(archived) == 0 || archived[0].ID != entries[0].ID {
		return nil, nil
	}
	return archived, nil
}

// remove deletes entries from the ledger. It deletes the first entry last: until then, every archiver starts with
// this entry and therefore uses the same file name.
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
