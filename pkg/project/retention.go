package project

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// Retention contains the rules for the outputs and logs that a project keeps.
type Retention struct {
	// Default is the rule of the project. It applies to assets that the project no longer declares.
	Default plan.Keep
	// Logs is how long to keep logs. 0: the collector's default.
	Logs time.Duration
	// Problems are the problems in asset files. The assets that such a file declares may be unknown.
	Problems Problems

	assets map[string]plan.Keep // the rule of each asset
}

// LoadRetention reads the retention rules of the project in the folder dir. It does not parse
// queries. It fails if servo.yaml has problems.
func LoadRetention(ctx context.Context, dir string, o Options) (*Retention, error) {
	l, err := read(dir, o, func(l *loader) error { l.readConfig(); return l.readAssets(ctx) })
	if err != nil {
		return nil, err
	}
	bad := l.problems.files()
	if bad[ConfigFile] {
		return nil, l.problems.Sorted()
	}
	r := &Retention{Default: l.project.Defaults.Keep, Logs: l.project.Defaults.KeepLogs, Problems: l.problems.Sorted(), assets: map[string]plan.Keep{}}
	for _, a := range l.assets {
		key := a.Key.String()
		if _, twice := r.assets[key]; twice || bad[a.File] {
			a.Keep = plan.Keep{All: true} // the rule is not certain, so keep everything
		}
		r.assets[key] = a.Keep
	}
	return r, nil
}

// Assets returns the keys of the declared assets, in no particular order.
func (r *Retention) Assets() []string { return slices.Collect(maps.Keys(r.assets)) }

// Of returns the rule of an asset. If the rule is unknown because of problems in asset files, it returns a rule that
// keeps all versions.
func (r *Retention) Of(asset string) plan.Keep {
	keep, ok := r.assets[asset]
	switch {
	case ok:
		return keep
	case len(r.Problems) > 0:
		return plan.Keep{All: true}
	}
	return r.Default
}

// Everything reports whether all outputs and logs are kept.
func (r *Retention) Everything() bool {
	for _, keep := range r.assets {
		if !keep.All {
			return false
		}
	}
	return r.Default.All
}
