package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
)

// needFlags lists the flags that select partitions by status, each with the status that it selects.
var needFlags = []struct {
	name  string
	need  engine.Need
	field func(*runFlags) *bool
	help  string
}{
	{
		"stale", engine.NeedStale, func(f *runFlags) *bool { return &f.stale },
		"run the missing and stale partitions, and the partitions that read one of them; without SELECTION, of all assets",
	},
	{"missing-only", engine.NeedMissing, func(f *runFlags) *bool { return &f.missing }, "run the missing partitions; without SELECTION, of all assets"},
	{
		"failed-only", engine.NeedFailed, func(f *runFlags) *bool { return &f.failed },
		"run failed partitions, and those skipped because of a failure, with the current code, unless a later run has materialized them",
	},
}

func (f *runFlags) addNeeds(cmd *cobra.Command) {
	for _, flag := range needFlags {
		cmd.Flags().BoolVar(flag.field(f), flag.name, false, flag.help)
	}
}

// need returns the status of the partitions to choose, or "" to choose the partitions of -p.
func (f *runFlags) need() engine.Need {
	for _, flag := range needFlags {
		if *flag.field(f) {
			return flag.need
		}
	}
	return ""
}

// exclusiveNeeds returns an error for flags that contradict each other.
func (f *runFlags) exclusiveNeeds(cmd *cobra.Command) error {
	var err error
	for i, flag := range needFlags {
		for _, other := range []string{"partition", "resume"} {
			err = errors.Join(err, exclusive(cmd, flag.name, other))
		}
		for _, other := range needFlags[i+1:] {
			err = errors.Join(err, exclusive(cmd, flag.name, other.name))
		}
	}
	return err
}

// orNothing replaces [engine.ErrNothing], which is no failure: it prints that there is nothing to run and returns nil.
// It returns other errors unchanged.
func (a *app) orNothing(err error) error {
	if errors.Is(err, engine.ErrNothing) {
		a.note("%v", err)
		return nil
	}
	return err
}
