package service

import (
	"io"
	"log/slog"

	"github.com/servo-orchestration/servo/pkg/trace"
)

// NewLogger logs lines of JSON. In a cloud its fields have the names that Cloud
// Logging looks for, so that its levels are levels there. What is logged within a
// trace says in which; project is that of Google Cloud which has it, if any.
func NewLogger(w io.Writer, level slog.Leveler, cloud bool, project string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if cloud {
		options.ReplaceAttr = cloudField
	}
	return slog.New(trace.Log(slog.NewJSONHandler(w, options), project))
}

// cloudField is a field of a log line as Cloud Logging has it.
func cloudField(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.MessageKey:
		a.Key = "message"
	case slog.LevelKey:
		a.Key = "severity"
		if level, ok := a.Value.Any().(slog.Level); ok {
			a.Value = slog.StringValue(severity(level))
		}
	}
	return a
}

func severity(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "ERROR"
	case level >= slog.LevelWarn:
		return "WARNING"
	case level >= slog.LevelInfo:
		return "INFO"
	}
	return "DEBUG"
}
