package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// versions are those of what a servo is made of.
type versions struct {
	Servo  string `json:"servo"`
	Commit string `json:"commit,omitempty"`
	Go     string `json:"go"`
	DuckDB string `json:"duckdb,omitempty"`
	System string `json:"system"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of servo and of what it is made of",
		Args:  takes(),
		RunE: func(*cobra.Command, []string) error {
			v := readVersions()
			return a.document(v, func() string {
				commit := ""
				if v.Commit != "" {
					commit = " (" + v.Commit + ")"
				}
				return fmt.Sprintf("servo %s%s\n%s %s\nDuckDB %s\n", v.Servo, commit, v.Go, v.System, v.DuckDB)
			})
		},
	}
}

func readVersions() versions {
	v := versions{Servo: "devel", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, DuckDB: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if main := info.Main.Version; main != "" && main != "(devel)" {
		v.Servo = main
	}
	dirty := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+changes"
			}
		}
	}
	if v.Commit != "" {
		v.Commit += dirty
	}
	for _, dep := range info.Deps {
		if strings.HasSuffix(dep.Path, "duckdb/duckdb-go/v2") {
			v.DuckDB = cmp.Or(duckDBVersion(dep.Version), v.DuckDB)
		}
	}
	return v
}

// duckDBVersion is DuckDB's own version in that of the driver: v2.10505.0 has 1.5.5.
func duckDBVersion(driver string) string {
	parts := strings.Split(driver, ".")
	const digits = 5
	if len(parts) < 2 || len(parts[1]) != digits {
		return ""
	}
	trim := func(s string) string { return cmp.Or(strings.TrimLeft(s, "0"), "0") }
	n := parts[1]
	return n[:1] + "." + trim(n[1:3]) + "." + trim(n[3:])
}
