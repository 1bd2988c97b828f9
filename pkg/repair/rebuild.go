package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/due"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Result is what a rebuild published.
type Result struct {
	Revision int64 `json:"revision"`
	// Groups is how many groups of the ledger were folded.
	Groups int   `json:"groups"`
	Rows   int64 `json:"rows"`
	// Recorded reports that the ledger was replayed in the order in which it had been
	// folded, so that the state is the same as before. Otherwise the state is a valid one,
	// in which all facts hold.
	Recorded bool `json:"recorded_order"`
	// Lost is how many groups the state had folded that the ledger does not have any
	// more: what they said is forgotten.
	Lost int `json:"lost_groups,omitempty"`
	// Renamed is how many entries were named far ahead of the store's clock and have
	// names of the store's time now.
	Renamed int `json:"renamed_entries,omitempty"`
}

// LostError reports that the ledger lacks what the state has folded.
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

// maxConflicts bounds how often a rebuild follows a domain that publishes while the
// rebuild is about to.
const maxConflicts = 64

// Rebuild builds the state from the ledger, in files that no revision refers to, and
// publishes it as the next revision, which begins a new timeline. That publish is the
// commit point: until then the live timeline goes on undisturbed, and an error means that
// nothing has changed. Compactors that fold the live timeline lose the race for that
// revision, load it, and go on from there.
//
// The ledger is replayed in the order that ledger_entries records, up to what the newest
// revision has folded. Entries that no revision has folded yet are left to the
// compactors. Where the order cannot be read because of damage, the error is a
// [RecordError]. Where the ledger lacks groups of the record, the error is a [LostError],
// unless cfg.Forget is set.
//
// With cfg.Bare the record is not read, and the ledger is folded entry by entry in the
// order of their ids. If the newest manifest cannot be read either, or others are missing,
// the boundary ends the numbers that manifests had, before the first revision of the new
// timeline is published.
//
// What is closed goes to history while the ledger is replayed: memory is in proportion to
// what lives, and to the number of groups and runs.
func Rebuild(ctx context.Context, cfg Config) (Result, error) {
	build := cfg.replayed
	if cfg.Bare {
		build = cfg.bare
	}
	b, err := build(ctx)
	if err != nil {
		return Result{}, err
	}
	return b.publish(ctx)
}

// built is a state that was built from the ledger and is to be published.
type built struct {
	cfg     Config
	state   *state.State
	last    string // greatest entry that was folded
	leaving *leaving
	closed  *segments
	base    manifest.BaseSnapshot
	result  Result

	bare *bareFold // of a rebuild of the bare ledger

	// Of a replay in the recorded order: where it is, and what reads the rest of the record.
	at     *manifest.Manifest
	record *record
	replay *replay
	named  *renaming
}

// replayed builds the state that the newest revision records.
func (cfg Config) replayed(ctx context.Context) (*built, error) {
	m, err := cfg.Manifests.Load(ctx)
	if errors.Is(err, manifest.ErrNone) {
		err = cmp.Or(cfg.refuseNothing(ctx), err)
	}
	if err != nil {
		return nil, recordError(err)
	}
	b := &built{cfg: cfg, at: m, record: &record{cfg: cfg, known: map[string]bool{}}}
	order, err := b.record.read(ctx, m)
	if err != nil {
		return nil, recordError(err)
	}
	if problems := inOrder(order); len(problems) > 0 {
		return nil, contradictions(problems)
	}
	// What was late stays late, and what was abandoned stays abandoned.
	cut := state.Cut{Seq: math.MaxInt64, Time: math.MaxInt64, Entries: m.BaseSnapshot.EntriesFrom, Runs: m.BaseSnapshot.RunsFrom}
	b.closed = cfg.newSegments(cut.Runs)
	b.leaving = newLeaving(cut, b.closed.add)
	b.replay = cfg.newReplay(cut.Runs, b.leaving)
	if b.named, err = cfg.rename(ctx, order, m.Watermarks.CompleteThrough); err != nil {
		return nil, err
	}
	b.replay.renamed, b.result.Renamed = b.named.to, b.named.len()
	if err := b.replay.fold(ctx, order); err != nil {
		return nil, err
	}
	b.state = b.replay.state
	b.result.Recorded, b.result.Groups = true, len(order)
	if err := b.refuseLoss(); err != nil {
		return nil, err
	}
	return b, b.writeBase(ctx, cut)
}

// refuseLoss is the error of a replay that has lost groups, if they must not be forgotten.
func (b *built) refuseLoss() error {
	if b.result.Lost = len(b.replay.lost); b.result.Lost > 0 && !b.cfg.Forget {
		return &LostError{Groups: b.replay.lost}
	}
	return nil
}

// writeBase writes what lives as a base, and what is closed by now as segments. What the
// state changes from here on is kept for a delta.
func (b *built) writeBase(ctx context.Context, cut state.Cut) error {
	st := b.state
	cut.Seq, cut.Time = st.FoldSeq, st.FoldTime
	err := b.leaving.evict(ctx, st, cut)
	if err == nil {
		err = b.closed.flush(ctx)
	}
	if err != nil {
		return err
	}
	b.base = manifest.BaseSnapshot{ID: b.cfg.IDs.New(), RunsFrom: cut.Runs}
	if cut.Time != 0 {
		b.base.FoldSeq, b.base.FoldTime, b.base.EntriesFrom = cut.Seq, cut.Time, cut.Entries
	}
	files, err := b.cfg.Codec.Encode(st.All())
	if err != nil {
		return err
	}
	b.result.Rows = b.closed.rows
	for _, f := range files {
		stored, err := b.cfg.store(ctx, f, manifest.TierBase, b.cfg.IDs.New())
		if err != nil {
			return err
		}
		b.base.Files = append(b.base.Files, stored)
		b.result.Rows += f.Rows
	}
	st.Drain()
	b.leaving.cut.Seq = -1 // nothing leaves any more
	if b.replay != nil {
		b.replay.keeps, b.last = true, b.replay.last
	}
	return nil
}

// publish publishes the state as the revision after the newest, and begins again with a
// newer one while others are faster.
func (b *built) publish(ctx context.Context) (Result, error) {
	if err := b.named.create(ctx); err != nil {
		return Result{}, err
	}
	for range maxConflicts {
		m, err := b.next(ctx)
		if err == nil {
			err = b.fill(ctx, m)
		}
		if err == nil && m.Due.At != 0 {
			// A later revision may have released the wakeup, and its manifest may be lost.
			err = due.Create(ctx, b.cfg.Store, due.Marker{At: m.Due.At, Domain: b.cfg.Domain})
		}
		if err != nil {
			return Result{}, err
		}
		err = b.cfg.Manifests.Publish(ctx, m)
		switch {
		case err == nil:
			b.result.Revision = m.Revision
			return b.result, b.named.drop(ctx)
		case errors.Is(err, manifest.ErrConflict), errors.Is(err, manifest.ErrNotCommitted):
		default:
			return Result{}, fmt.Errorf("publish rebuilt state: %w; run `servo admin rebuild` again", err)
		}
	}
	return Result{}, fmt.Errorf("publish rebuilt state of %s: others published %d times while the rebuild was about to: run `servo admin rebuild` again when fewer runs are under way",
		b.cfg.Domain, maxConflicts)
}

// next returns the first manifest of the new timeline, which follows the newest revision.
// What that revision has folded since is folded first: in the recorded order, or from a
// listing of the ledger. If manifests are missing, a writer may still publish, or has
// published, a number above the newest revision. Then the boundary ends all of these
// numbers.
func (b *built) next(ctx context.Context) (*manifest.Manifest, error) {
	newest, err := b.cfg.Manifests.Load(ctx)
	lost := b.at == nil && (manifest.Damaged(err) || errors.Is(err, manifest.ErrNone))
	if err == nil && b.at != nil {
		err = b.follow(ctx, newest)
	}
	if err == nil {
		var dense bool
		dense, err = b.cfg.Manifests.Dense(ctx)
		lost = err == nil && !dense
	}
	var m *manifest.Manifest
	switch {
	case lost:
		m, err = b.cfg.Manifests.NewLineage(ctx, b.cfg.Writer)
	case err == nil:
		m = newest.Rebuilt(b.cfg.IDs.New(), b.cfg.Writer)
	}
	if err == nil && b.bare != nil {
		err = b.bare.follow(ctx)
		b.result.Groups, b.last = b.bare.groups, b.bare.last
	}
	if err != nil {
		return nil, fmt.Errorf("publish rebuilt state: %w", err)
	}
	if lost || b.bare != nil {
		b.awake(m)
	}
	return m, nil
}

// awake gives m a wakeup in the next minute, unless it has an earlier one. The state differs
// from the one that the last wakeup stood for, and only a sweep finds entries that are not
// folded yet.
func (b *built) awake(m *manifest.Manifest) {
	if !b.cfg.Wakeups {
		return
	}
	next := max(due.Minute(event.At(b.cfg.now())), m.Due.Through).Add(time.Minute)
	if m.Due.At <= m.Due.Through || m.Due.At > next {
		m.Due.At = next
	}
}

// follow replays what a later revision has folded.
func (b *built) follow(ctx context.Context, m *manifest.Manifest) error {
	if m.Lineage != b.at.Lineage {
		return fmt.Errorf("revision %d is of another timeline: another rebuild has finished meanwhile", m.Revision)
	}
	if m.Ref() == b.at.Ref() {
		return nil
	}
	order, err := b.record.read(ctx, m)
	if err != nil {
		return recordError(err)
	}
	if problems := inOrder(order); len(problems) > 0 {
		return contradictions(problems)
	}
	b.replay.from = m.BaseSnapshot.RunsFrom
	if err := b.replay.fold(ctx, order); err != nil {
		return err
	}
	b.at, b.last = m, b.replay.last
	b.result.Groups += len(order)
	return b.refuseLoss()
}

// fill puts the state into a manifest: the base, history, and what has changed since.
// Files that may be collected under the manifest's floor are copied first.
func (b *built) fill(ctx context.Context, m *manifest.Manifest) error {
	cfg := b.cfg
	err := cfg.refresh(ctx, m.OrphanFloor, manifest.TierBase, b.base.Files)
	if err == nil {
		err = b.closed.refresh(ctx, m.OrphanFloor)
	}
	if err == nil {
		m.History, err = b.closed.indexes(ctx)
	}
	if err != nil {
		return err
	}
	m.BaseSnapshot = b.base
	m.BaseSnapshot.Revision, m.BaseSnapshot.PublishedAt = m.Revision, event.At(cfg.now())
	m.FoldSeq, m.FoldTime = b.state.FoldSeq, b.state.FoldTime
	if b.last != "" {
		m.Watermarks.EventsProcessedThrough, m.Watermarks.LastProcessedFile = b.last, ledger.Key(cfg.Domain, b.last)
	}
	if b.at != nil && b.result.Lost == 0 {
		// What the revision before knew to be folded is folded here, too. A listing that goes
		// by a clock far ahead is not believed.
		m.Watermarks.CompleteThrough = min(b.at.Watermarks.CompleteThrough, ids.AtTime(cfg.now().Add(-compactor.ListMargin)))
	}
	delta, err := b.delta(ctx, m.Revision)
	if err == nil && delta.Rows > 0 {
		m.L0, m.L0Count = []manifest.Delta{delta}, 1
		m.BaseSnapshot.Revision-- // the base does not contain the delta
	}
	return err
}

// maxInline is how many rows a delta holds in the manifest itself.
const maxInline = 150

// delta writes what has changed since the base.
func (b *built) delta(ctx context.Context, revision int64) (manifest.Delta, error) {
	changed := b.state.Changed()
	d := manifest.Delta{ID: b.cfg.IDs.New(), Revision: revision, Rows: int64(changed.Len())}
	if d.Rows <= maxInline {
		var err error
		d.Inline, d.Bytes, err = b.cfg.Codec.Inline(changed)
		return d, err
	}
	files, err := b.cfg.Codec.Encode(changed)
	if err != nil {
		return d, err
	}
	for _, f := range files {
		stored, err := b.cfg.store(ctx, f, manifest.TierL0, d.ID)
		if err != nil {
			return d, err
		}
		d.Files = append(d.Files, stored)
		d.Bytes += stored.Size
	}
	return d, nil
}
