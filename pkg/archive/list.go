package archive

import (
	"context"
	"errors"
	"iter"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// Range selects the entries that List yields.
type Range struct {
	// The selected entries are greater than After and at most Until. Empty means no limit.
	After, Until string
	// Most is the maximum number of entries from the ledger; 0: no limit.
	Most int
	// OnDamaged is called with the error of each damaged file of the archive, and List continues without the file. If
	// OnDamaged is nil, List ends with the error.
	OnDamaged func(error)
}

// List yields the entries of ledger and archive in ascending order, each once. Only
// archived entries have Data. List ends after an error.
//
// List first reads all names in the ledger. If an entry leaves the ledger during the iteration, List still yields it:
// it knows the name, or it finds the entry in the archive.
func (r *Reader) List(ctx context.Context, in Range) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		m := &merge{ctx: ctx, reader: r, in: in}
		if err := m.begin(); err != nil {
			yield(Entry{}, err)
			return
		}
		for {
			e, ok, err := m.next()
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if !ok || !yield(e, nil) {
				return
			}
		}
	}
}

// merge yields the entries of the ledger and the entries of the archive in one common order.
type merge struct {
	ctx    context.Context //nolint:containedctx // a merge exists only during one iteration
	reader *Reader
	in     Range

	names  []Entry   // the remaining entries of the ledger
	files  []string  // the first entries of unread files
	opened [][]Entry // the remaining entries of read files; several if files overlap
}

// begin lists the ledger and then the archive.
func (m *merge) begin() error {
	r := m.reader
	for name, err := range ledger.List(m.ctx, r.store, r.domain, m.in.After) {
		if err != nil {
			return err
		}
		if m.beyond(name.Entry) || m.in.Most > 0 && len(m.names) == m.in.Most {
			break
		}
		m.names = append(m.names, Entry{ID: name.Entry, Stored: name.Object.Updated})
	}
	opts := blob.ListOptions{Prefix: Prefix(r.domain)}
	if m.in.After != "" {
		opts.StartAfter = folderOf(r.domain, m.in.After) // any file of this day may contain later entries
	}
	for name, err := range firsts(m.ctx, r.store, r.domain, opts) {
		if err != nil {
			return err
		}
		if m.beyond(name) {
			break
		}
		m.files = append(m.files, name)
	}
	return nil
}

func (m *merge) beyond(entry string) bool { return m.in.Until != "" && entry > m.in.Until }

// next returns the least remaining entry. It first reads every file that starts at or
// before that entry.
func (m *merge) next() (e Entry, ok bool, err error) {
	for {
		e, ok = m.least()
		if len(m.files) == 0 || ok && e.ID < m.files[0] {
			break
		}
		entries, err := load(m.ctx, m.reader.store, m.reader.domain, m.files[0])
		if errors.Is(err, errDamaged) && m.in.OnDamaged != nil {
			m.in.OnDamaged(err)
			err = nil
		}
		if err != nil {
			return Entry{}, false, err
		}
		m.files = m.files[1:]
		for len(entries) > 0 && entries[0].ID <= m.in.After {
			entries = entries[1:]
		}
		m.opened = append(m.opened, entries)
	}
	if !ok || m.beyond(e.ID) {
		return Entry{}, false, nil
	}
	m.skip(e.ID)
	return e, true, nil
}

// least returns the least entry of the ledger and the opened files, with its data if a
// file contains it.
func (m *merge) least() (e Entry, ok bool) {
	if len(m.names) > 0 {
		e, ok = m.names[0], true
	}
	for _, entries := range m.opened {
		if len(entries) > 0 && (!ok || entries[0].ID <= e.ID) {
			e, ok = entries[0], true
		}
	}
	return e, ok
}

// skip removes an entry from the heads of all lists.
func (m *merge) skip(entry string) {
	if len(m.names) > 0 && m.names[0].ID == entry {
		m.names = m.names[1:]
	}
	left := m.opened[:0]
	for _, entries := range m.opened {
		if len(entries) > 0 && entries[0].ID == entry {
			entries = entries[1:]
		}
		if len(entries) > 0 {
			left = append(left, entries)
		}
	}
	clear(m.opened[len(left):])
	m.opened = left
}
