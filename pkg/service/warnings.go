package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// warnEvery is the least interval between logged warnings with the same reason. Warnings in between are only counted,
// so that callers cannot fill the log.
const warnEvery = time.Minute

// warnings limits warnings by reason. It is safe for concurrent use.
type warnings struct {
	clock  clock.Clock
	logger *slog.Logger

	mu      sync.Mutex
	reasons map[string]*warned
}

// warned records when a reason was last logged, and how many warnings were omitted since then.
type warned struct {
	at      time.Time
	leftOut int
}

// warn logs a warning, unless one with the same reason was logged in the last minute. Every reason stays in memory,
// so there must be few reasons.
func (w *warnings) warn(ctx context.Context, reason, message string, attributes ...slog.Attr) {
	now := w.clock.Now()
	w.mu.Lock()
	if w.reasons == nil {
		w.reasons = map[string]*warned{}
	}
	last := w.reasons[reason]
	if last != nil && now.Sub(last.at) < warnEvery && now.After(last.at.Add(-warnEvery)) {
		last.leftOut++
		w.mu.Unlock()
		return
	}
	leftOut := 0
	if last != nil {
		leftOut = last.leftOut
	}
	w.reasons[reason] = &warned{at: now}
	w.mu.Unlock()
	if leftOut > 0 {
		attributes = append(attributes, slog.Int("left_out", leftOut))
	}
	w.logger.LogAttrs(ctx, slog.LevelWarn, message, attributes...) //nolint:sloglint // callers pass constants
}
