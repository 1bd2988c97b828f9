package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/servo-orchestration/servo/tests/peers/server"
)

type version func(ctx context.Context, tools string) string

// ofModule returns a function that returns two versions, separated by a comma: the version of a Go module of this
// program, and the result of the function "beside".
func ofModule(path string, beside version) version {
	return func(ctx context.Context, tools string) string {
		found := "unknown"
		if info, ok := debug.ReadBuildInfo(); ok {
			for _, module := range info.Deps {
				if module.Path == path {
					found = module.Version
				}
			}
		}
		return found + ", " + beside(ctx, tools)
	}
}

// ofPackage returns a function that returns two versions, separated by a comma: the version of a Node.js package, and
// the result of the function "beside".
func ofPackage(folder, name string, beside version) version {
	return func(ctx context.Context, tools string) string {
		return packageVersion(folder, name, "")(ctx, tools) + ", " + beside(ctx, tools)
	}
}

func packageVersion(folder, name, called string) version {
	return func(_ context.Context, tools string) string {
		var manifest struct {
			Version string `json:"version"`
		}
		content, err := os.ReadFile(filepath.Join(tools, nodePeers, folder, "node_modules", name, "package.json"))
		if err != nil || json.Unmarshal(content, &manifest) != nil {
			return "unknown"
		}
		return strings.TrimSpace(called + " " + manifest.Version)
	}
}

func postgresVersion(ctx context.Context, _ string) string {
	program, err := server.PostgresProgram(ctx, "postgres")
	if err != nil {
		return "PostgreSQL"
	}
	return firstLine(ctx, program, "--version")
}

func temporalVersion(ctx context.Context, tools string) string {
	return firstLine(ctx, filepath.Join(tools, "temporal"), "--version")
}

func redisVersion(ctx context.Context, _ string) string {
	for field := range strings.FieldsSeq(firstLine(ctx, "redis-server", "--version")) {
		if number, ok := strings.CutPrefix(field, "v="); ok {
			return "Redis " + number
		}
	}
	return "Redis"
}

// firstLine returns the first line that a program prints.
func firstLine(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
