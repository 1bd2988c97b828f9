package archive

import (
	"context"
	"iter"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// Range says which entries are listed.
type Range struct {
	// After leaves out entries up to and including this one, and Until those beyond
	// it; "" leaves out none.
	After, Until string
	// Most is how many entries of the ledger are listed at most; 0: all.
	Most int
}

// List yields the entries of ledger and archive in ascending order, each once. Those
// that the archive holds come with their bytes. After an error it ends.
//
// The ledger is listed first, to its end: what leaves it from then on is in the
// archive, or is at hand by its name.
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

// merge merges the ledger's names and the archive's files.
type merge struct {
	ctx    context.Context //nolint:containedctx // lives as long as the iteration that it belongs to
	reader *Reader
	in     Range

	names  []Entry   // of the ledger, that are left
	files  []string  // that are not read yet, by their first entries
	opened [][]Entry // what is left of those that are: more than one only where files overlap
}

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
		opts.StartAfter = folderOf(r.domain, m.in.After) // with the files before it in its folder, which may reach beyond it
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

// next is the least entry that is left. Before it is given, every file that begins at
// or before it is read.
func (m *merge) next() (e Entry, ok bool, err error) {
	for {
		e, ok = m.least()
		if len(m.files) == 0 || ok && e.ID < m.files[0] {
			break
		}
		entries, err := load(m.ctx, m.reader.store, m.reader.domain, m.files[0])
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
	m.pass(e.ID)
	return e, true, nil
}

// least is the least entry at hand, with its bytes if a file has them.
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

// pass goes beyond an entry wherever it comes next.
func (m *merge) pass(entry string) {
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
