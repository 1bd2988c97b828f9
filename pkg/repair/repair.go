// Package repair holds the state against the ledger, and makes it anew from the
// ledger.
package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Config is what is repaired.
type Config struct {
	Domain    ids.Domain
	Store     blob.Store
	Manifests *manifest.Store
	Codec     *snapshot.Codec
	IDs       *ids.Source
	// Writer names who repairs in the manifest that is published.
	Writer string
	// Forget has a rebuild go on where the ledger lacks what the state had folded.
	Forget bool
}

// maxProblems bounds how many differences are reported.
const maxProblems = 50

// Report is what a verification found.
type Report struct {
	Revision int64 `json:"revision"`
	Groups   int   `json:"groups"`
	Events   int64 `json:"events"`
	Rows     int64 `json:"rows"`
	Outputs  int   `json:"outputs"`
	// Lost is how many groups the state has folded that the ledger does not have any
	// more, Differences how many rows are not what the ledger says, as far as they were
	// counted, and BadOutputs how many outputs are not what was committed.
	Lost        int `json:"lost_groups"`
	Differences int `json:"differences"`
	BadOutputs  int `json:"bad_outputs"`
	// Problems are what is wrong, a line each; none: all is well.
	Problems []string `json:"problems"`
}

// Verify replays the ledger in the order that ledger_entries records, compares
// every row of every table with the live state, and holds the outputs of
// succeeded tasks against their commit markers. Reading the state verifies the
// checksum of each of its files.
func Verify(ctx context.Context, cfg Config) (Report, error) {
	m, err := cfg.Manifests.Load(ctx)
	if errors.Is(err, manifest.ErrNone) {
		return Report{}, nil
	}
	if err != nil {
		return Report{}, err
	}
	live, err := snapshot.Load(ctx, cfg.Codec, cfg.Manifests, m)
	if err != nil {
		return Report{}, err
	}
	closed, err := snapshot.LoadHistory(ctx, cfg.Codec, cfg.Manifests, m, "")
	if err != nil {
		return Report{}, err
	}
	rows := live.All()
	entries := slices.Concat(closed.Entries, rows.Entries)
	report := Report{Revision: m.Revision, Groups: len(entries), Events: live.FoldSeq, Rows: int64(rows.Len() + closed.Len())}
	replayed, err := cfg.replay(ctx, entries, m.BaseSnapshot.RunsFrom)
	if err != nil {
		return report, err
	}
	report.Lost = len(replayed.lost)
	differences := slices.Concat(replayed.problems, cfg.differences(m, replayed.state, live, closed))
	report.Differences = len(differences)
	report.Problems = slices.Concat(replayed.lost, differences)
	if err := cfg.outputs(ctx, slices.Concat(closed.Tasks, rows.Tasks), &report); err != nil {
		return report, err
	}
	if len(report.Problems) > maxProblems {
		report.Problems = append(report.Problems[:maxProblems], "…")
	}
	return report, nil
}

// differences holds a replayed state against the live one and history. What is in
// which of the two follows from the rows.
func (cfg Config) differences(m *manifest.Manifest, replayed, live *state.State, closed *state.Rows) []string {
	want, got := state.New(cfg.Domain), state.New(cfg.Domain)
	cut := snapshot.CutOf(m)
	want.Load(replayed.Evict(cut).KeptFrom(cut.Runs))
	got.Load(closed.Superseded(live).KeptFrom(cut.Runs))
	lines := cfg.Codec.Diff(replayed, live, maxProblems)
	for _, line := range cfg.Codec.Diff(want, got, maxProblems) {
		lines = append(lines, "history: "+line)
	}
	return lines
}

// replayed is what the ledger says in its recorded order.
type replayed struct {
	state *state.State
	// lost are the groups that were folded and that the ledger does not have any more;
	// problems is what else speaks against the record: a line each.
	lost, problems []string
}

// replay folds recorded groups in the order in which they were folded, where closed runs
// below an id were not kept.
func (cfg Config) replay(ctx context.Context, entries []*state.Entry, from string) (replayed, error) {
	order, problems := inOrder(entries)
	out := replayed{state: state.New(cfg.Domain), problems: problems}
	r := cfg.reader()
	for _, row := range order {
		g, err := r.group(ctx, row.Entry, row.Group)
		if errors.Is(err, blob.ErrNotFound) || errors.Is(err, errNoGroup) {
			out.lost = append(out.lost, fmt.Sprintf("ledger: entry %s, group %s is recorded and not there", row.Entry, row.Group))
			continue
		}
		if err == nil {
			var gone []string
			gone, err = cfg.plansGone(ctx, g)
			out.lost = append(out.lost, gone...)
		}
		if err != nil {
			return replayed{}, err
		}
		// A group that was dead and folded later has its later place; the numbers
		// that it had before stay unused.
		out.state.FoldSeq = row.FirstSeq - 1
		g.Revision = row.Revision
		if row.Outcome == state.Late { // also of runs that were never there, once they could have been and gone
			g.Closed = unkept(out.state, g, from)
		}
		if r := fold.Apply(out.state, g); r.Known {
			out.problems = append(out.problems, fmt.Sprintf("ledger: entry %s, group %s was folded twice", row.Entry, row.Group))
		}
	}
	return out, nil
}

// plansGone are the plans that a group names and that are not there, a line each: without
// them a run has no tasks. Plans are stored before they are named, and never deleted.
func (cfg Config) plansGone(ctx context.Context, g fold.Group) (lines []string, err error) {
	for ref, p := range g.Plans {
		if p.Err == "" {
			continue
		}
		_, err := cfg.Store.Head(ctx, ref)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			lines = append(lines, fmt.Sprintf("ledger: entry %s, group %s names %s, which is not there", g.Entry, g.ID, ref))
		case err != nil && !errors.Is(err, blob.ErrInvalid):
			return nil, err
		}
	}
	return lines, nil
}

// unkept are the runs that a group names which would not be kept any more.
func unkept(st *state.State, g fold.Group, from string) []string {
	return slices.DeleteFunc(fold.Names(g), func(run string) bool { return run >= from || st.Runs.Get(run) != nil })
}

// inOrder sorts recorded groups as they were folded. Each took the numbers of its
// events. Where two took the same ones, writers folded that did not know of each
// other, and there is no such order.
func inOrder(entries []*state.Entry) (order []*state.Entry, problems []string) {
	order = slices.Clone(entries)
	slices.SortFunc(order, func(a, b *state.Entry) int {
		return cmp.Or(cmp.Compare(a.FirstSeq, b.FirstSeq), strings.Compare(a.Entry, b.Entry), strings.Compare(a.Group, b.Group))
	})
	for i, row := range order[min(1, len(order)):] {
		before := order[i]
		if row.FirstSeq < before.FirstSeq+max(1, int64(before.Events)) {
			problems = append(problems, fmt.Sprintf("ledger: entry %s, group %s was folded at the place of entry %s, group %s, which is %d",
				row.Entry, row.Group, before.Entry, before.Group, before.FirstSeq))
		}
	}
	return order, problems
}

// outputs checks that each output of a succeeded task is what its marker says.
func (cfg Config) outputs(ctx context.Context, tasks []*state.Task, report *Report) error {
	for _, t := range tasks {
		if t.State != state.TaskSucceeded || t.OutputURI == "" {
			continue
		}
		report.Outputs++
		problem, err := cfg.output(ctx, t)
		if err != nil {
			return err
		}
		if problem != "" {
			report.BadOutputs++
			report.Problems = append(report.Problems, fmt.Sprintf("output of task %s of run %s: %s", t.TaskKey, t.RunID, problem))
		}
	}
	return nil
}

func (cfg Config) output(ctx context.Context, t *state.Task) (problem string, err error) {
	key := contract.MarkerKeyOf(t.OutputURI)
	data, _, err := cfg.Store.Get(ctx, key)
	if errors.Is(err, blob.ErrNotFound) {
		return "its commit marker " + key + " is missing", nil
	}
	if err != nil {
		return "", err
	}
	marker, err := contract.DecodeMarker(data)
	if err != nil {
		return fmt.Sprintf("its commit marker %s cannot be read: %v", key, err), nil
	}
	if marker.URI != t.OutputURI {
		return fmt.Sprintf("the state names %s, its commit marker %s", t.OutputURI, marker.URI), nil
	}
	for _, f := range marker.Files {
		object, err := cfg.Store.Head(ctx, marker.URI+f.Name)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			return "file " + marker.URI + f.Name + " is missing", nil
		case err != nil:
			return "", err
		case object.Size != f.Size:
			return fmt.Sprintf("file %s%s has %d bytes, and should have %d", marker.URI, f.Name, object.Size, f.Size), nil
		}
	}
	return "", nil
}

var errNoGroup = errors.New("the entry has no such group")

// reader reads groups of the ledger and its archive; it keeps the last entry, whose
// groups were mostly folded one after the other.
type reader struct {
	cfg     Config
	entries *archive.Reader
	entry   string
	groups  []fold.Group
}

func (cfg Config) reader() *reader {
	return &reader{cfg: cfg, entries: archive.NewReader(cfg.Store, cfg.Domain)}
}

func (r *reader) load(ctx context.Context, entry string) error {
	if r.entry == entry {
		return nil
	}
	data, err := r.entries.Read(ctx, entry)
	if err != nil {
		return err
	}
	return r.take(ctx, entry, data)
}

// take goes on with an entry whose bytes are at hand.
func (r *reader) take(ctx context.Context, entry string, data []byte) error {
	groups := compactor.Decode(entry, data)
	if err := compactor.FetchPlans(ctx, r.cfg.Store, r.cfg.Domain, groups); err != nil {
		return err
	}
	r.entry, r.groups = entry, groups
	return nil
}

func (r *reader) group(ctx context.Context, entry, group string) (fold.Group, error) {
	if err := r.load(ctx, entry); err != nil {
		return fold.Group{}, err
	}
	for _, g := range r.groups {
		if g.ID == group {
			return g, nil
		}
	}
	return fold.Group{}, errNoGroup
}

// Result is what a rebuild made.
type Result struct {
	Revision int64 `json:"revision"`
	Entries  int   `json:"entries"`
	Rows     int64 `json:"rows"`
	// Recorded says that the order in which the ledger had been folded was known,
	// so that the state is the same as it was; else it is a valid one, in which all
	// facts hold.
	Recorded bool `json:"recorded_order"`
	// Lost is how many groups the state had folded that the ledger does not have any
	// more, as far as that is known: what they said is forgotten.
	Lost int `json:"lost_groups,omitempty"`
}

// LostError says that the ledger lacks what the state has folded.
type LostError struct {
	// Groups are what it lacks, a line each.
	Groups []string
}

// Error implements error.
func (e *LostError) Error() string {
	const some = 5
	var text strings.Builder
	groups := "1 group"
	if n := len(e.Groups); n > 1 {
		groups = fmt.Sprintf("%d groups", n)
	}
	text.WriteString("the ledger lacks " + groups + " that the state has folded, or their plans, and a rebuild would forget what was said there: tasks that have ended may run again")
	for _, line := range e.Groups[:min(some, len(e.Groups))] {
		text.WriteString("\n  " + line)
	}
	if len(e.Groups) > some {
		text.WriteString("\n  …")
	}
	return text.String()
}

// Reads are what the keys begin with that a rebuild reads: without the first three it
// makes another state, and without the others it knows neither the order in which the
// ledger was folded nor which revisions there were.
func Reads(d ids.Domain) []string {
	return []string{
		ledger.Prefix(d), archive.Prefix(d), compactor.PlanPrefix(d), manifest.Prefix(d), manifest.PinPrefix(d), manifest.StatePrefix(d),
		manifest.BoundaryKey(d), manifest.HintKey(d),
	}
}

// Writes are what the keys begin with that a rebuild writes, in its order: what is copied
// is copied in the same one.
func Writes(d ids.Domain) []string {
	return []string{manifest.StatePrefix(d), manifest.BoundaryKey(d), manifest.Prefix(d), manifest.HintKey(d)}
}

// Rebuild makes the state anew from the ledger and publishes it as a new
// lineage. The caller must own the domain: nobody else may be writing.
//
// Where ledger_entries can still be read the ledger is replayed in its recorded
// order; without it, entry by entry in the order of their ids, as far as nothing
// speaks against it. Where the record says that the ledger has lost entries the error
// is a [LostError], unless the caller wants them forgotten.
func Rebuild(ctx context.Context, cfg Config) (Result, error) {
	result := Result{}
	st := state.New(cfg.Domain)
	keptFrom := "" // what was late for that reason stays so
	if entries, from, err := cfg.recorded(ctx); err == nil {
		replayed, err := cfg.replay(ctx, entries, from)
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		if result.Lost = len(replayed.lost); result.Lost > 0 && !cfg.Forget {
			return Result{}, &LostError{Groups: replayed.lost}
		}
		if err == nil && result.Lost == 0 && len(replayed.problems) == 0 {
			st, result.Recorded, keptFrom = replayed.state, true, from
		}
	}
	entries, err := cfg.foldRest(ctx, st)
	if err != nil {
		return Result{}, err
	}
	result.Entries = entries
	return cfg.publish(ctx, st, keptFrom, result)
}

// recorded reads ledger_entries alone, from the newest manifest, and from where on that
// keeps runs.
func (cfg Config) recorded(ctx context.Context) (entries []*state.Entry, from string, err error) {
	m, err := cfg.Manifests.Load(ctx)
	if err != nil {
		return nil, "", err
	}
	only := *m
	only.BaseSnapshot.Files = onlyEntries(m.BaseSnapshot.Files, func(f manifest.File) string { return f.Table })
	only.L1, only.L0, only.History = nil, nil, nil
	for _, d := range slices.Concat(m.L1, m.L0) {
		d.Files = onlyEntries(d.Files, func(f manifest.File) string { return f.Table })
		d.Inline = onlyEntries(d.Inline, func(r manifest.Rows) string { return r.Table })
		only.L0 = append(only.L0, d)
	}
	st, err := snapshot.Load(ctx, cfg.Codec, cfg.Manifests, &only)
	if err != nil {
		return nil, "", err
	}
	closed, err := snapshot.LoadHistory(ctx, cfg.Codec, cfg.Manifests, m, "ledger_entries")
	if err != nil {
		return nil, "", err
	}
	return slices.Concat(closed.Entries, st.Entries.Rows()), m.BaseSnapshot.RunsFrom, nil
}

// onlyEntries are those that hold rows of ledger_entries.
func onlyEntries[T any](parts []T, table func(T) string) []T {
	return slices.DeleteFunc(slices.Clone(parts), func(part T) bool { return table(part) != "ledger_entries" })
}

// foldRest folds, in the order of the ids, whatever of ledger and archive is not
// folded yet.
func (cfg Config) foldRest(ctx context.Context, st *state.State) (int, error) {
	r, waiting := cfg.reader(), cfg.reader()
	h := newHeld()
	n := 0
	for e, err := range r.entries.List(ctx, archive.Range{}) {
		if err != nil {
			return n, err
		}
		n++
		if e.Data != nil {
			err = r.take(ctx, e.ID, e.Data)
		} else {
			err = r.load(ctx, e.ID)
		}
		if err != nil {
			return n, err
		}
		for _, g := range slices.Clone(r.groups) {
			if err := foldAll(ctx, st, waiting, h.next(st, g)); err != nil {
				return n, err
			}
		}
	}
	if err := foldAll(ctx, st, waiting, h.rest()); err != nil {
		return n, err
	}
	for _, key := range h.timers {
		g, err := r.group(ctx, key.A, key.B)
		if err == nil {
			err = foldOne(ctx, st, waiting, g)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func foldAll(ctx context.Context, st *state.State, waiting *reader, groups []fold.Group) error {
	for _, g := range groups {
		if err := foldOne(ctx, st, waiting, g); err != nil {
			return err
		}
	}
	return nil
}

// foldOne folds a group, and then the dead letters that waited for what it brought.
func foldOne(ctx context.Context, st *state.State, waiting *reader, g fold.Group) error {
	queue := []fold.Group{g}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		for _, run := range fold.Apply(st, next).Appeared {
			for _, key := range st.Waiting(run) {
				redriven, err := waiting.group(ctx, key.A, key.B)
				if err != nil {
					return err
				}
				queue = append(queue, redriven)
			}
		}
	}
	return nil
}

// publish writes a whole state as the first revision of a new lineage. Its files
// are written before the old lineage ends.
func (cfg Config) publish(ctx context.Context, st *state.State, keptFrom string, result Result) (Result, error) {
	files, err := cfg.Codec.Encode(st.All())
	if err != nil {
		return Result{}, err
	}
	base := manifest.BaseSnapshot{ID: cfg.IDs.New(), RunsFrom: keptFrom}
	for _, f := range files {
		key := manifest.StateKey(cfg.Domain, f.Table, manifest.TierBase, cfg.IDs.New())
		if _, err := cfg.Store.Create(ctx, key, f.Data); err != nil {
			return Result{}, fmt.Errorf("write rebuilt state: %w", err)
		}
		base.Files = append(base.Files, manifest.File{
			Table: f.Table, Key: key, Size: int64(len(f.Data)), Rows: f.Rows, CRC32C: blob.CRC32C(f.Data),
			MinRun: f.MinRun, MaxRun: f.MaxRun,
		})
		result.Rows += f.Rows
	}
	m, err := cfg.Manifests.NewLineage(ctx, cfg.Writer)
	if err != nil {
		return Result{}, err
	}
	base.Revision = m.Revision
	m.BaseSnapshot = base
	m.FoldSeq, m.FoldTime = st.FoldSeq, st.FoldTime
	if last := lastEntry(st); last != "" {
		m.Watermarks.EventsProcessedThrough, m.Watermarks.LastProcessedFile = last, ledger.Key(cfg.Domain, last)
	}
	if err := cfg.Manifests.Publish(ctx, m); err != nil {
		return Result{}, fmt.Errorf("publish rebuilt state: %w; run `servo admin rebuild` again", err)
	}
	result.Revision = m.Revision
	return result, nil
}

func lastEntry(st *state.State) string {
	last := ""
	for row := range st.Entries.All {
		last = max(last, row.Entry)
	}
	return last
}
