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
)

const (
	// collectedFile remembers where the collection of outputs goes on, and when it last came to its end.
	collectedFile = "collected.json"
	// collectEvery is how often all outputs are looked at.
	collectEvery = time.Hour
	// collectWithin and collectMost bound one pass of a process that serves, and closingWithin one of a process that
	// ends after its run.
	collectWithin = 10 * time.Second
	collectMost   = 5_000
	closingWithin = time.Second
)

// collected is what collectedFile holds. It is a hint: a lost one has all outputs looked at once more.
type collected struct {
	// Next is where the next pass begins; empty: at the beginning.
	Next string `json:"next,omitempty"`
	// EndedAt is when a pass last came to the end.
	EndedAt time.Time `json:"ended_at,omitzero"`
}

// GC is what is collected of a folder, or of a store.
func (p *Parts) GC(keep *gc.Keep) gc.Config {
	cfg := gc.Config{Domain: p.Domain, Store: p.Objects, Manifests: p.Manifests, Codec: p.Codec, Clock: p.Clock}
	if keep == nil {
		cfg.Keep = func(string) (gc.Keep, bool) { return gc.Keep{}, false }
	} else {
		cfg.Keep = func(string) (gc.Keep, bool) { return *keep, true }
	}
	return cfg
}

// collect makes one bounded pass, unless all outputs were looked at lately. What it cannot do waits for the next one.
func (s *Stack) collect(ctx context.Context, within time.Duration) {
	if s.opts.Keep == nil {
		return
	}
	name := filepath.Join(s.opts.Dir, collectedFile)
	var last collected
	if data, err := os.ReadFile(name); err == nil {
		_ = json.Unmarshal(data, &last) // a hint
	}
	now := s.opts.Clock.Now()
	if ago := now.Sub(last.EndedAt); last.Next == "" && ago >= 0 && ago < collectEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	report, err := gc.Run(ctx, s.parts.GC(s.opts.Keep), gc.Options{After: last.Next, MaxDeletes: collectMost})
	last.Next = report.Next
	switch {
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		s.opts.Logger.WarnContext(ctx, "outputs were not collected; it is tried again later", slog.Any("error", err))
		return
	case err == nil && last.Next == "":
		last.EndedAt = now
	}
	if report.Files > 0 {
		s.opts.Logger.InfoContext(ctx, "outputs collected", slog.Int("files", report.Files), slog.Int64("bytes", report.Bytes))
	}
	if data, err := json.Marshal(last); err == nil {
		_ = os.WriteFile(name, data, 0o600) // a hint
	}
}

// collecting makes passes while the stack serves.
func (s *Stack) collecting(ctx context.Context) error {
	const first = time.Minute // not while a process starts that ends soon
	for wait := first; s.opts.Clock.Sleep(ctx, wait) == nil; wait = collectEvery / collectsPerEvery {
		s.collect(ctx, collectWithin)
	}
	return nil
}

// collectsPerEvery is how many passes a full round may take.
const collectsPerEvery = 10
