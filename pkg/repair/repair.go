// Package repair verifies a domain's state against the ledger, and rebuilds it from the
// ledger.
package repair

import (
	"context"
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
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
	// Clock is the time of day; nil: the machine's.
	Clock clock.Clock
	// Bare has a rebuild fold the bare ledger, without the record of the order in which
	// it was folded.
	Bare bool
	// Forget has a rebuild go on where the ledger lacks what the state had folded.
	Forget bool
	// Wakeups says that the domain is swept when a wakeup is due, as in a bucket. A rebuild
	// of the bare ledger, or one that finds manifests missing, creates one for the next
	// minute.
	Wakeups bool
}

const (
	// maxProblems bounds how many differences are reported.
	maxProblems = 50
	// maxPlaces bounds what is believed of how many groups there are: it is made room for.
	maxPlaces = 4 << 20
)

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
	// NoManifest reports that the domain has no manifest although something was written
	// there: the state is lost, and there is nothing to compare with the ledger.
	NoManifest bool `json:"no_manifest,omitempty"`
	// Problems are what is wrong, a line each; none: all is well.
	Problems []string `json:"problems"`
}

// Verify replays the ledger in the order that ledger_entries records, compares
// every row of every table with the live state and history, and holds the outputs of
// succeeded tasks against their commit markers. Reading the state verifies the
// checksum of each of its files.
//
// Of history it holds one segment at a time, and of what the replay closes sums alone,
// so that memory is in proportion to what lives, and to the order of the ledger's groups.
// Only where the sums differ all is read at once, to say what does.
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
	stored, order, bad, err := cfg.stored(ctx, m, live, &report)
	if err != nil {
		return report, err
	}
	closed := newSums(snapshot.CutOf(m).Runs)
	closed.seed = stored.seed // sums by another one say nothing
	leaving := newLeaving(snapshot.CutOf(m), func(_ context.Context, rows *state.Rows) error { return closed.add(rows) })
	problems := inOrder(order)
	replay := cfg.newReplay(m.BaseSnapshot.RunsFrom, leaving)
	err = replay.fold(ctx, order)
	if err == nil {
		err = leaving.rest(ctx, replay.state)
	}
	if err != nil {
		return report, err
	}
	differences := slices.Concat(problems, state.Diff(replay.state, live, maxProblems))
	if !closed.same(stored, live) {
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

// stored goes through all that is stored once: history, a segment at a time, and the live
// state. It gives sums of history's rows, the places of all groups, in no order, and what
// is wrong with outputs.
func (cfg Config) stored(ctx context.Context, m *manifest.Manifest, live *state.State, report *Report) (*sums, []place, []string, error) {
	history := newSums(snapshot.CutOf(m).Runs)
	order := make([]place, 0, min(m.History["ledger_entries"].Rows, maxPlaces)+int64(live.Entries.Len()))
	var bad []string
	look := func(rows *state.Rows) (err error) {
		report.Rows += int64(rows.Len())
		order = appendPlaces(order, state.List[state.Entry](rows))
		bad, err = cfg.outputs(ctx, live, state.List[state.Task](rows), report, bad)
		return err
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
	err := look(live.All())
	report.Groups = len(order)
	return history, order, bad, err
}

// compareAll holds the ledger against history with all of both in memory, and says what
// differs. What is in history and what in the live state follows from the rows.
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
	cut := snapshot.CutOf(m)
	want.Load(replay.state.Evict(cut).KeptFrom(cut.Runs))
	got.Load(closed.Superseded(live).KeptFrom(cut.Runs))
	var lines []string
	for _, line := range state.Diff(want, got, maxProblems) {
		lines = append(lines, "history: "+line)
	}
	return lines, nil
}
