package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/publisher"
	"github.com/servo-orchestration/servo/pkg/worker"
)

const (
	// collectedFile records where the next pass of the collector begins, and when a pass last checked all outputs.
	collectedFile = "collected.json"
	// collectEvery is the time between two checks of all outputs.
	collectEvery = time.Hour
	// collectWithin limits the duration of a pass while the stack serves, and closingWithin the duration of the last
	// pass, which a closing stack runs. collectMost limits the deletions of each pass.
	collectWithin = 10 * time.Second
	collectMost   = 5_000
	closingWithin = time.Second
	// An unfinished pass continues after collectEvery/passesPerEvery.
	passesPerEvery = 10
)

// collected is the content of collectedFile. It is a hint: without it, the next pass begins at the
// first output.
type collected struct {
	// Next is the key at which the next pass begins. Empty: at the first output.
	Next string `json:"next,omitempty"`
	// EndedAt is when a pass last reached the end.
	EndedAt time.Time `json:"ended_at,omitzero"`
}

// GC returns the configuration of the collector for a folder or store. A nil rule deletes nothing.
func (w *Workspace) GC(rule gc.Rule) gc.Config {
	if rule == nil {
		rule = func(string) (gc.Keep, bool) { return gc.Keep{}, false }
	}
	return gc.Config{
		Handle: w.Handle,
		Keep:   rule,
	}
}

// Collect runs one pass of the collector. Unless the pass is for some assets only, it also removes the scratch folders
// of dead workers. The parameter "dir" is the state folder.
func (w *Workspace) Collect(ctx context.Context, dir string, rule gc.Rule, opts gc.Options) (gc.Report, error) {
	cfg := w.GC(rule)
	if w.Folder != nil {
		cfg.Published = func() (map[string]bool, error) { return publisher.NamedIn(dir, w.Domain.String()) }
	}
	report, err := gc.Run(ctx, cfg, opts)
	if w.Folder == nil || len(opts.Assets) > 0 {
		return report, err
	}
	folders, bytes, sweepErr := worker.SweepScratch(filepath.Join(dir, scratchDir), opts.DryRun)
	if folders > 0 {
		report.Counts = append(report.Counts, gc.Count{Reason: gc.Scratch, Files: folders, Bytes: bytes})
		report.Files += folders
		report.Bytes += bytes
	}
	return report, errors.Join(err, sweepErr)
}

// lastCollected returns the hint that the last pass has stored. If it cannot be read, the result is the zero value.
func (s *Stack) lastCollected() (last collected) {
	if data, err := os.ReadFile(filepath.Join(s.opts.Dir, collectedFile)); err == nil {
		_ = json.Unmarshal(data, &last) // a hint
	}
	return last
}

// wait returns how long the next pass must wait, so that outputs are not checked more often than once an hour.
func (c collected) wait(now time.Time) time.Duration {
	if ago := now.Sub(c.EndedAt); c.Next == "" && ago >= 0 && ago < collectEvery {
		return collectEvery - ago
	}
	return 0
}

// collect runs one bounded pass, unless the last check of all outputs is less than an hour old. It returns false if the
// pass did not reach the last output.
func (s *Stack) collect(ctx context.Context, within time.Duration) (all bool) {
	if s.opts.Keep == nil {
		return true
	}
	s.collection.mu.Lock()
	defer s.collection.mu.Unlock()
	last := s.lastCollected()
	now := s.opts.Clock.Now()
	if last.wait(now) > 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	rule, err := s.opts.Keep(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.opts.Logger.WarnContext(ctx, "could not read the project's rules for keeping outputs; nothing is deleted until a later pass", slog.Any("error", err))
		}
		return ctx.Err() == nil
	}
	var report gc.Report
	if rule != nil {
		report, err = s.workspace.Collect(ctx, s.opts.Dir, rule, gc.Options{After: last.Next, MaxDeletes: collectMost})
	}
	if last.Next = report.Next; last.Next == "" && ctx.Err() == nil {
		last.EndedAt = now
	}
	if err != nil && ctx.Err() == nil {
		s.opts.Logger.WarnContext(ctx, "could not delete all unneeded outputs; a later pass retries", slog.Any("error", err))
	}
	if report.Files > 0 {
		s.opts.Logger.InfoContext(ctx, "outputs collected", slog.Int("files", report.Files), slog.Int64("bytes", report.Bytes))
	}
	if data, err := json.Marshal(last); err == nil {
		_ = os.WriteFile(filepath.Join(s.opts.Dir, collectedFile), data, 0o600) // a hint
	}
	return last.Next == ""
}

// collectAll runs passes while the stack serves. A pass follows a publish, so an idle stack runs
// none.
func (s *Stack) collectAll(ctx context.Context) error {
	if s.opts.Keep == nil {
		return nil
	}
	const least = time.Minute // a process that ends earlier runs one pass, when it closes
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.collection.due:
		}
		wait := max(least, s.lastCollected().wait(s.opts.Clock.Now()))
		for all := false; !all; wait = collectEvery / passesPerEvery {
			if s.opts.Clock.Sleep(ctx, wait) != nil {
				return nil //nolint:nilerr // the stack is closing
			}
			all = s.collect(ctx, collectWithin)
		}
	}
}
