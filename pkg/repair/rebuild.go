package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// Result is the result of a rebuild.
type Result struct {
	Revision int64 `json:"revision"`
	// Groups is the number of folded groups.
	Groups int   `json:"groups"`
	Rows   int64 `json:"rows"`
	// Recorded reports that the ledger was replayed in the recorded order, so that the new state equals the old one. If
	// Recorded is false, the new state may differ, but is valid and contains all facts.
	Recorded bool `json:"recorded_order"`
	// Lost is the number of groups that the old state had folded and that the ledger, or the store of plans, has lost.
	// The new state does not contain them. A bare rebuild does not know which entries are missing: it counts damaged
	// files of the archive, and groups whose plans are missing or damaged.
	Lost int `json:"lost_groups,omitempty"`
	// Renamed is the number of entries that were named far ahead of the store's clock and were
	// renamed to the store's time.
	Renamed int `json:"renamed_entries,omitempty"`
}

// LostError reports that the ledger lacks groups that the state has folded.
type LostError struct {
	// Groups describes the missing groups, one line each.
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
	text.WriteString("the ledger lacks " + groups + " that the state has folded, or the plans of these groups: a rebuild would forget their events, and ended tasks may run again")
	for _, line := range e.Groups[:min(some, len(e.Groups))] {
		text.WriteString("\n  " + line)
	}
	if len(e.Groups) > some {
		text.WriteString("\n  …")
	}
	return text.String()
}

// maxConflicts is how many times a rebuild tries to publish before it gives up. A try fails if another process
// publishes the revision first.
const maxConflicts = 64

// Rebuild builds the state from the ledger, in files that no revision refers to yet. It publishes the state as the
// next revision, which starts a new timeline. That publish is the commit point: until then the live timeline
// continues undisturbed, and an error means that nothing has changed. Compactors of the live timeline get a conflict
// at that revision, load it, and continue from there.
//
// The ledger is replayed in the order that ledger_entries records, up to the newest revision. Compactors fold later
// entries after the rebuild. If the recorded order is unknown because of damage, the error is a [RecordError]. If the
// ledger lacks recorded groups, the error is a [LostError], unless cfg.AllowLoss is set.
//
// With cfg.Bare the recorded order is not read, and the ledger is folded entry by entry, in the order of the entries'
// ids. Unless cfg.AllowLoss is set, Rebuild then returns a [LostError] if a plan or a file of the archive is damaged, if
// a plan is missing, or if the ledger is empty. If the newest manifest is unreadable or manifests are missing, Rebuild
// raises the boundary above the old revision numbers before it publishes the first revision of the new timeline.
//
// Closed rows move to history during the replay. Memory is proportional to the live rows and to the
// number of groups, runs and partitions.
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

// built is a state that was built from the ledger and will be published.
type built struct {
	cfg     Config
	state   *state.State
	last    string // the greatest id of a folded entry
	evictor *evictor
	closed  *segments
	base    manifest.BaseSnapshot
	result  Result

	bare *bareFold // set in a bare rebuild

	// source is the manifest whose groups were replayed. record reads the order in which later revisions folded their
	// groups. Only a replay in the recorded order sets source and record.
	source *manifest.Manifest
	record *record
	replay *replay
	named  *renaming
}

// replayed builds the state of the newest revision by replaying the ledger in the recorded order.
func (cfg Config) replayed(ctx context.Context) (*built, error) {
	m, err := cfg.Manifests.Load(ctx)
	if errors.Is(err, manifest.ErrNone) {
		err = cmp.Or(cfg.rejectNewDomain(ctx), err)
	}
	if err != nil {
		return nil, recordError(err)
	}
	b := &built{cfg: cfg, source: m, record: &record{cfg: cfg, known: map[string]bool{}}}
	order, err := b.record.read(ctx, m)
	if err != nil {
		return nil, recordError(err)
	}
	if problems := inOrder(order); len(problems) > 0 {
		return nil, contradictions(problems)
	}
	// Keep the cutoffs of the manifest: groups that were late stay late, and abandoned entries stay abandoned.
	cut := state.Cutoff{Seq: math.MaxInt64, Time: math.MaxInt64, Entries: m.BaseSnapshot.EntriesFrom, Runs: m.BaseSnapshot.RunsFrom}
	b.closed = cfg.newSegments(cut.Runs)
	b.evictor = newEvictor(cut, b.closed.add)
	b.replay = cfg.newReplay(cut.Runs, b.evictor)
	if b.named, err = cfg.rename(ctx, order, m.Watermarks.CompleteThrough); err != nil {
		return nil, err
	}
	b.replay.renamed, b.result.Renamed = b.named.to, b.named.len()
	if err := b.replay.fold(ctx, order); err != nil {
		return nil, err
	}
	b.state = b.replay.state
	b.result.Recorded, b.result.Groups = true, len(order)
	if err := b.rejectLoss(b.replay.lost); err != nil {
		return nil, err
	}
	return b, b.writeBase(ctx, cut)
}

// rejectLoss returns an error if the ledger lacks groups or plans, unless cfg.AllowLoss is set. The parameter lost
// describes what is missing, one line each.
func (b *built) rejectLoss(lost []string) error {
	if b.result.Lost = len(lost); b.result.Lost > 0 && !b.cfg.AllowLoss {
		return &LostError{Groups: lost}
	}
	return nil
}

// writeBase writes the live rows as a base and the closed rows as segments. After that, the state records later
// changes, which become a delta.
func (b *built) writeBase(ctx context.Context, cut state.Cutoff) error {
	st := b.state
	cut.Seq, cut.Time = st.FoldSeq, st.FoldTime
	if cut.Entries != "" {
		cut.Partitions = st.PartitionsBelow(cut.Entries)
	}
	err := b.evictor.evict(ctx, st, cut)
	if err == nil {
		err = b.closed.flush(ctx)
	}
	if err != nil {
		return err
	}
	b.base = manifest.BaseSnapshot{ID: b.cfg.IDs.New(), RunsFrom: cut.Runs}
	if cut.Time != 0 {
		b.base.FoldSeq, b.base.FoldTime, b.base.EntriesFrom = cut.Seq, cut.Time, cut.Entries
		b.base.PartitionsFrom = cut.Partitions
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
	b.evictor.cut.Seq = -1 // from now on, nothing is evicted
	if b.replay != nil {
		b.replay.keeps, b.last = true, b.replay.last
	}
	return nil
}

// publish publishes the state as the revision after the newest one. After a conflict, it folds what the other process
// has folded, and tries again.
func (b *built) publish(ctx context.Context) (Result, error) {
	if err := b.named.create(ctx); err != nil {
		return Result{}, err
	}
	for range maxConflicts {
		m, err := b.next(ctx)
		if err == nil {
			err = b.fill(ctx, m)
		}
		if err == nil && m.Wakeup.At != 0 {
			// Create the wakeup again: a later revision, whose manifest may be lost, may have allowed its deletion.
			err = wakeup.Create(ctx, b.cfg.Store, wakeup.Wakeup{At: m.Wakeup.At, Domain: b.cfg.Domain})
		}
		if err != nil {
			return Result{}, err
		}
		err = b.cfg.Manifests.Publish(ctx, m)
		switch {
		case err == nil:
			b.result.Revision = m.Revision
			return b.result, b.named.deleteOld(ctx)
		case errors.Is(err, manifest.ErrConflict), errors.Is(err, manifest.ErrNotCommitted):
		default:
			return Result{}, fmt.Errorf("publish rebuilt state: %w; run `servo admin rebuild` again", err)
		}
	}
	return Result{}, fmt.Errorf("publish rebuilt state of %s: %d conflicts with other writers: run `servo admin rebuild` again when fewer runs are active",
		b.cfg.Domain, maxConflicts)
}

// next returns the first manifest of the new timeline, which follows the newest revision. Before that, it folds the
// entries that compactors have folded since the state was built, up to the newest revision. It folds them in the
// recorded order or, in a bare rebuild, from a listing of the ledger. If manifests are missing, a writer may have
// published a revision with a greater number than the newest one that can be found, or may still publish one. In this
// case, next raises the boundary above all of these numbers.
func (b *built) next(ctx context.Context) (*manifest.Manifest, error) {
	newest, err := b.cfg.Manifests.Load(ctx)
	lost := b.source == nil && (manifest.Damaged(err) || errors.Is(err, manifest.ErrNone))
	if err == nil && b.source != nil {
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
		m, err = b.cfg.Manifests.NewTimeline(ctx, b.cfg.Writer)
	case err == nil:
		m = newest.Rebuilt(b.cfg.IDs.New(), b.cfg.Writer)
	}
	if err == nil && b.bare != nil {
		err = b.bare.follow(ctx)
		b.result.Groups, b.last = b.bare.groups, b.bare.last
		if err == nil {
			err = b.rejectLoss(b.bare.lost)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("publish rebuilt state: %w", err)
	}
	if b.cfg.Wakeups && (lost || b.bare != nil) {
		// The last wakeup was created for another state, and only a sweep finds entries that are not folded yet. So the new
		// state needs a wakeup soon.
		m.Wakeup = wakeup.Soon(m.Wakeup, event.At(b.cfg.Clock.Now()))
	}
	return m, nil
}

// follow replays the groups that a later revision has folded.
func (b *built) follow(ctx context.Context, m *manifest.Manifest) error {
	if m.Timeline != b.source.Timeline {
		return fmt.Errorf("revision %d is on another timeline: another rebuild has finished in the meantime", m.Revision)
	}
	if m.Ref() == b.source.Ref() {
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
	b.source, b.last = m, b.replay.last
	b.result.Groups += len(order)
	return b.rejectLoss(b.replay.lost)
}

// fill adds the base, the history and the changes since the base to a manifest. Before that, it copies the files
// whose names are below the manifest's orphan floor, because a collector may delete them.
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
	m.BaseSnapshot.Revision, m.BaseSnapshot.PublishedAt = m.Revision, event.At(cfg.Clock.Now())
	m.FoldSeq, m.FoldTime, m.RowCounts = b.state.FoldSeq, b.state.FoldTime, b.state.Counts()
	if b.last != "" {
		m.Watermarks.EventsProcessedThrough, m.Watermarks.LastProcessedFile = b.last, ledger.Key(cfg.Domain, b.last)
	}
	if b.source != nil && b.result.Lost == 0 {
		// This state contains every entry below the watermark of the last revision, so the watermark stays valid. A clock
		// that was far ahead may have set it to a later time: lower it to ListMargin before the present. Every listing is
		// complete up to that time.
		m.Watermarks.CompleteThrough = min(b.source.Watermarks.CompleteThrough, ids.AtTime(cfg.Clock.Now().Add(-compactor.ListMargin)))
	}
	delta, err := b.delta(ctx, m.Revision)
	if err == nil && delta.Rows > 0 {
		m.L0, m.L0Count = []manifest.Delta{delta}, 1
		m.BaseSnapshot.Revision-- // the base lacks the rows of the delta, so it has an earlier revision
	}
	return err
}

// maxInline is the maximum number of rows of an inline delta.
const maxInline = 150

// delta returns the changes since the base as a delta, which is inline if it is small.
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
