// Package repair verifies the state of a domain against its ledger, and rebuilds the state from the
// ledger. This package is not a stable API.
package repair

import (
	"context"
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Config configures a verification or a rebuild.
type Config struct {
	*domain.Handle
	// Writer names this process in the published manifest.
	Writer string
	// Bare makes a rebuild fold the ledger in the order of ids, and not in the recorded order.
	Bare bool
	// AllowLoss makes a rebuild continue if the ledger lacks groups that the state has folded.
	AllowLoss bool
	// Wakeups means that a sweeper sweeps the domain at the times of wakeups, as it does if the state is in a bucket.
	// With Wakeups, a rebuild creates a wakeup for the next minute if it is bare or if manifests are missing.
	Wakeups bool
	// Documents returns descriptions of missing or damaged documents that a state needs, other than state files, plans
	// and outputs. If it is nil, such documents are not verified.
	Documents func(context.Context, *state.State) ([]string, error)
}

const (
	// maxProblems is the maximum number of differences that a report lists.
	maxProblems = 50
	// maxPlaces is the maximum number of groups for which memory is allocated in advance. The manifest contains the
	// number of groups, but this number may be wrong.
	maxPlaces = 4 << 20
)

// Report is the result of a verification.
type Report struct {
	Revision int64 `json:"revision"`
	Groups   int   `json:"groups"`
	Events   int64 `json:"events"`
	Rows     int64 `json:"rows"`
	Outputs  int   `json:"outputs"`
	// Lost counts folded groups and their plans, if they are missing or damaged.
	Lost int `json:"lost_groups"`
	// Differences is the number of rows that differ from the replayed ledger. Counting stops at a limit.
	Differences int `json:"differences"`
	// BadOutputs is the number of outputs that differ from their commit markers. SupersededOutputs is how many of these
	// outputs are superseded and not read by any live run. They do no harm, so Problems omits them.
	BadOutputs        int `json:"bad_outputs"`
	SupersededOutputs int `json:"bad_superseded_outputs"`
	// BadDocuments is the number of plans, releases and lists of partitions that are missing or damaged.
	BadDocuments int `json:"bad_documents"`
	// NoManifest reports that the domain has objects but no manifest: the state is lost, and there
	// is nothing to compare with the ledger.
	NoManifest bool `json:"no_manifest,omitempty"`
	// Problems describes the problems, one line each.
	Problems []string `json:"problems"`
	// Superseded describes the superseded outputs that are damaged, one line each.
	Superseded []string `json:"superseded_problems,omitempty"`
}

// Verify replays the ledger in the order that ledger_entries records. It compares every row of
// every table with the live state and history, and the outputs of succeeded tasks with their commit
// markers. Reading the state verifies the checksums of its files.
//
// Verify reads history one segment at a time. It keeps only checksums of the rows in history and of the closed rows
// of the replay, so its memory is proportional to the live rows, the number of groups and the number of partitions.
// If the checksums differ, Verify loads all of history into memory to find the differences.
func Verify(ctx context.Context, cfg Config) (Report, error) {
	m, err := cfg.Manifests.Load(ctx)
	if errors.Is(err, manifest.ErrNone) || manifest.Lost(err) {
		return cfg.withoutManifest(ctx)
	}
	if err != nil {
		return Report{}, err
	}
	live, err := snapshot.Load(ctx, cfg.Codec, cfg.Manifests, m)
	if err != nil {
		return Report{}, err
	}
	report := Report{Revision: m.Revision, Events: live.FoldSeq}
	stored, order, bad, err := cfg.readStored(ctx, m, live, &report)
	if err != nil {
		return report, err
	}
	closed := newSums(snapshot.CutoffOf(m).Runs, live)
	closed.seed = stored.seed // sums with different seeds are not comparable
	evictor := newEvictor(snapshot.CutoffOf(m), func(_ context.Context, rows *state.Rows) error { return closed.add(rows) })
	problems := inOrder(order)
	replay := cfg.newReplay(m.BaseSnapshot.RunsFrom, evictor)
	err = replay.fold(ctx, order)
	if err == nil {
		err = evictor.evictRest(ctx, replay.state)
	}
	if err != nil {
		return report, err
	}
	if cfg.Documents != nil {
		documents, err := cfg.Documents(ctx, live)
		if err != nil {
			return report, err
		}
		report.BadDocuments, bad = len(documents), append(documents, bad...)
	}
	differences := slices.Concat(problems, state.Diff(replay.state, live, maxProblems))
	if !closed.equal(stored) {
		more, err := cfg.compareAll(ctx, m, order, live)
		if err != nil {
			return report, err
		}
		differences = append(differences, more...)
	}
	report.Lost, report.Differences = len(replay.lost), len(differences)
	report.Problems = slices.Concat(replay.lost, differences, bad)
	if len(report.Problems) > maxProblems {
		report.Problems = append(report.Problems[:maxProblems], "…")
	}
	return report, nil
}

// readStored reads the whole stored state once: the live state, and history one segment at a time. It returns checksums
// of the rows in history, the places of all groups in no particular order, and descriptions of damaged outputs.
func (cfg Config) readStored(ctx context.Context, m *manifest.Manifest, live *state.State, report *Report) (*sums, []place, []string, error) {
	history := newSums(snapshot.CutoffOf(m).Runs, live)
	order := make([]place, 0, min(m.History["ledger_entries"].Rows, maxPlaces)+int64(live.Entries.Len()))
	snap := &snapshot.Snapshot{State: live, History: snapshot.HistoryOf(cfg.Codec, cfg.Manifests, m)}
	checked := outputs{Config: cfg, live: live, snap: snap, report: report}
	look := func(rows *state.Rows) error {
		report.Rows += int64(rows.Len())
		order = appendPlaces(order, state.List[state.Entry](rows))
		return checked.check(ctx, state.List[state.Task](rows))
	}
	for rows, err := range snapshot.Segments(ctx, cfg.Codec, cfg.Manifests, m, "") {
		if err == nil {
			err = history.add(rows)
		}
		if err == nil {
			err = look(rows)
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	for rows, err := range snapshot.Pages(ctx, cfg.Codec, cfg.Manifests, m) {
		if err == nil {
			report.Rows += int64(rows.Len())
			err = history.add(rows)
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	err := look(live.All())
	report.Groups = len(order)
	return history, order, checked.bad, err
}

// compareAll loads history, replays the ledger again, and returns the differences. It compares the stored history
// with the replayed rows below the history cutoff, which should be in history.
func (cfg Config) compareAll(ctx context.Context, m *manifest.Manifest, order []place, live *state.State) ([]string, error) {
	closed, err := snapshot.LoadHistory(ctx, cfg.Codec, cfg.Manifests, m)
	if err != nil {
		return nil, err
	}
	replay := cfg.newReplay(m.BaseSnapshot.RunsFrom, nil)
	if err := replay.fold(ctx, order); err != nil {
		return nil, err
	}
	want, got := state.New(cfg.Domain), state.New(cfg.Domain)
	cut := snapshot.CutoffOf(m)
	want.Load(replay.state.Evict(cut).KeptFrom(cut.Runs))
	got.Load(closed.WithoutSuperseded(live).KeptFrom(cut.Runs))
	var lines []string
	for _, line := range state.Diff(want, got, maxProblems) {
		lines = append(lines, "history: "+line)
	}
	return lines, nil
}
