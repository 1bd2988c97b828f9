package service

import (
	"io"
	"log/slog"

	"github.com/servo-orchestration/servo/pkg/trace"
)

// NewLogger returns a logger of JSON lines. In a cloud it uses the field names of Cloud Logging, so that Cloud Logging
// recognizes the levels. A record within a trace contains the name of the trace. The parameter project is the Google
// Cloud project that stores the traces, if any.
func NewLogger(w io.Writer, level slog.Leveler, cloud bool, project string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if cloud {
		options.ReplaceAttr = cloudField
	}
	return slog.New(trace.Log(slog.NewJSONHandler(w, options), project))
}

// cloudField renames a field for Cloud Logging.
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
