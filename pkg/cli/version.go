package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/query"
)

// versions holds the versions of servo and its main libraries.
type versions struct {
	Servo  string `json:"servo"`
	Commit string `json:"commit,omitempty"`
	Go     string `json:"go"`
	DuckDB string `json:"duckdb,omitempty"`
	// ZoneData is the version of the IANA time zone data.
	ZoneData string `json:"zone_data"`
	System   string `json:"system"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "version",
		Annotations: writesDocument,
		Short:       "Print the versions of servo and of its main libraries",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := readVersions(cmd.Context())
			if err != nil {
				return err
			}
			return a.document(v, func() string {
				commit := ""
				if v.Commit != "" {
					commit = " (" + v.Commit + ")"
				}
				return fmt.Sprintf("servo %s%s\n%s %s\nDuckDB %s\nzone data %s\n", v.Servo, commit, v.Go, v.System, v.DuckDB, v.ZoneData)
			})
		},
	}
}

// servoVersion returns the version of this program.
func servoVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}

func readVersions(ctx context.Context) (versions, error) {
	v := versions{Servo: servoVersion(), ZoneData: calendar.ZoneVersion, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	var err error
	if v.DuckDB, err = duckDBVersion(ctx); err != nil {
		return v, err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v, nil
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
	return v, nil
}

// duckDBVersion returns the version that DuckDB reports.
func duckDBVersion(ctx context.Context) (version string, err error) {
	db, err := query.Open(ctx, query.Source{}, query.Options{})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.Query(ctx, "SELECT version()")
	if err != nil {
		return "", err
	}
	cells, err := rows.Collect(1)
	if err != nil || len(cells) == 0 {
		return "", err
	}
	return strings.TrimPrefix(fmt.Sprint(cells[0][0]), "v"), nil
}
