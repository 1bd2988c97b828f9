package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/servo-orchestration/servo/internal/bench"
	"github.com/servo-orchestration/servo/internal/corpus"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/query/render"
)

// apiSettings are the flags of `servo-bench api`.
type apiSettings struct {
	*settings

	dir     string
	size    corpus.Size
	seed    uint64
	samples int
	output  string
	only    string
}

// apiCommand measures the calls of the API on a generated state folder.
func (s *settings) apiCommand() *cobra.Command {
	a := &apiSettings{settings: s}
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Measure the calls of the API on a generated state folder",
		Long: "Write a state folder with many assets, runs and partitions, serve it, and measure calls of the API over HTTP.\n" +
			"The first call of each kind is shown separately, because it reads data that later calls find in memory.",
		Example: "  servo-bench api\n  servo-bench api --assets 10000 --runs 1000000 --partitions 10000000 --tasks 100000 --dir corpus",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&a.dir, "dir", "", "folder of the generated state; it is kept, and the next measurement of the same size reuses it (default: a temporary folder)")
	flags.IntVar(&a.size.Assets, "assets", corpus.Small.Assets, "number of assets")
	flags.IntVar(&a.size.Runs, "runs", corpus.Small.Runs, "number of closed runs, with one task each")
	flags.IntVar(&a.size.Partitions, "partitions", corpus.Small.Partitions, "number of partitions of all assets; one asset has a tenth of them")
	flags.IntVar(&a.size.Tasks, "tasks", corpus.Small.Tasks, "number of tasks of an additional run")
	flags.Uint64Var(&a.seed, "seed", 1, "seed of the generated rows")
	flags.IntVar(&a.samples, "samples", 100, "number of calls of each kind") //nolint:mnd // enough for a p99
	flags.StringVar(&a.only, "only", "", "measure the calls whose names match this regular expression")
	flags.StringVarP(&a.output, "output", "o", "table", "output format: table, json, yaml or csv")
	return cmd
}

func (a *apiSettings) run(ctx context.Context) (err error) {
	format, err := render.ParseFormat(a.output)
	switch {
	case err != nil:
		return &usageError{err}
	case a.samples < 1 || a.size.Assets < 2 || a.size.Runs < 1 || a.size.Tasks < 1 || a.size.Partitions < a.size.Assets:
		return usagef("--samples, --runs and --tasks must be 1 or more, --assets 2 or more, and --partitions at least --assets")
	case max(a.size.Assets, a.size.Runs, a.size.Partitions, a.size.Tasks) > 10*maxRows:
		return usagef("--assets, --runs, --partitions and --tasks must be at most %d", 10*maxRows)
	}
	var only *regexp.Regexp
	if a.only != "" {
		if only, err = regexp.Compile(a.only); err != nil {
			return usagef("invalid --only: %w", err)
		}
	}
	logger, err := a.log()
	if err != nil {
		return err
	}
	dir := a.dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "servo-bench-"); err != nil {
			return fmt.Errorf("create a folder for the corpus: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	calls, err := bench.API(ctx, bench.APIConfig{
		Dir: dir, Size: a.size, Seed: a.seed, Samples: a.samples, Only: only, Clock: clock.System{}, Logger: logger, Note: note,
	})
	if err != nil {
		return err
	}
	width, _, _ := term.GetSize(int(os.Stdout.Fd())) // 0: not a terminal
	if format == render.JSON || format == render.YAML {
		return render.Document(os.Stdout, format, calls)
	}
	return render.Write(os.Stdout, render.List(format, callColumns(), calls), render.Options{Format: format, Width: width})
}

func callColumns() []render.Column[bench.Call] {
	ms := func(name string, get func(bench.Call) float64) render.Column[bench.Call] {
		return render.Column[bench.Call]{
			Name: name, Value: func(c bench.Call) any { return get(c) },
			Text: func(c bench.Call) any {
				if v := get(c); v > 0 {
					return fmt.Sprintf("%.2f", v)
				}
				return nil
			},
		}
	}
	return []render.Column[bench.Call]{
		{Name: "call", Value: func(c bench.Call) any { return c.Name }},
		{Name: "samples", Value: func(c bench.Call) any { return c.Samples }},
		ms("first_ms", func(c bench.Call) float64 { return c.First }),
		ms("p50_ms", func(c bench.Call) float64 { return c.P50 }),
		ms("p99_ms", func(c bench.Call) float64 { return c.P99 }),
		ms("max_ms", func(c bench.Call) float64 { return c.Max }),
		ms("budget_ms", func(c bench.Call) float64 { return c.Budget }),
	}
}
