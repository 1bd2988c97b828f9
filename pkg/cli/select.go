package cli

import (
	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/selector"
)

// assetFlags are the flags that, together with the arguments of a command, select assets.
type assetFlags struct {
	all, upstream, downstream bool
	exclude                   []string
}

// add adds the flags to a command.
func (f *assetFlags) add(cmd *cobra.Command, verb string) {
	flags := cmd.Flags()
	flags.BoolVar(&f.upstream, "upstream", false, "also "+verb+" everything that the selected assets depend on")
	flags.BoolVar(&f.downstream, "downstream", false, "also "+verb+" everything that depends on the selected assets")
	flags.StringArrayVar(&f.exclude, "exclude", nil, "leave out the assets of a selection (repeatable)")
}

// assetChoice is a parsed choice of assets.
type assetChoice selector.Query

// parse parses the selections. Its error is a usage error.
func (f *assetFlags) parse(args []string) (assetChoice, error) {
	if f.all {
		args = []string{"*"}
	}
	c := assetChoice{Upstream: f.upstream, Downstream: f.downstream}
	var err error
	if c.Include, err = selector.ParseAll(args); err == nil && len(f.exclude) > 0 {
		c.Exclude, err = selector.ParseAll(f.exclude)
	}
	if err != nil {
		return c, &usageError{err}
	}
	return c, nil
}

// resolve returns the chosen assets of a project. The result is empty if the project has no assets. An unknown name is
// a usage error.
func (c assetChoice) resolve(assets []plan.Asset) (selector.Result, error) {
	if len(assets) == 0 {
		return selector.Result{}, nil
	}
	r, err := selector.NewCatalog(assets).Select(selector.Query(c))
	if err != nil {
		return r, &usageError{err}
	}
	return r, nil
}
