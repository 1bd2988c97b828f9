package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/state"
)

func (a *app) limitsCommand() *cobra.Command {
	limits := &cobra.Command{
		Use:         "limits",
		Annotations: writesRows,
		Short:       "List the limits on concurrent tasks; set, remove or apply them",
		Long: "List how many tasks may run at once in the workspace, and in each pool with a limit.\n\n" +
			"The project whose folder contains the state folder applies the limits of its servo.yaml with every\n" +
			"`servo run` and `servo dev`. Other checkouts, and projects whose state is in a bucket, change limits\n" +
			"only with these commands.",
		Args: a.noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listLimits(cmd.Context()) },
	}
	limits.AddCommand(a.setLimitCommand(), a.removeLimitCommand(), a.applyLimitsCommand())
	return limits
}

func (a *app) setLimitCommand() *cobra.Command {
	var workspace bool
	cmd := &cobra.Command{
		Use:     "set [POOL] SLOTS",
		Short:   "Set how many tasks may run at once in a pool or in the workspace",
		Example: "  servo limits set gpu 2\n  servo limits set --workspace 50",
		Args:    takes("[POOL]", "SLOTS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			pool, err := poolArgument(args[:last], workspace)
			if err != nil {
				return err
			}
			slots, err := strconv.ParseInt(args[last], 10, 32)
			if err != nil || slots < 0 {
				return usagef("number of slots %q: write a number from 0 (no task starts) to %d", args[last], math.MaxInt32)
			}
			return a.changeLimits(cmd.Context(), func(ctx context.Context, s *session) error { return s.SetLimit(ctx, pool, int32(slots)) })
		},
	}
	cmd.Flags().BoolVar(&workspace, "workspace", false, "set the limit of the whole workspace")
	return cmd
}

func (a *app) removeLimitCommand() *cobra.Command {
	var workspace bool
	cmd := &cobra.Command{
		Use:   "remove [POOL]",
		Short: "Remove the limit of a pool or of the workspace",
		Long: fmt.Sprintf("Remove a limit. A pool is then bounded only by the workspace, and a workspace by the default\nof %s tasks.",
			view.Grouped(state.DefaultWorkspaceSlots)),
		Args: takes("[POOL]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, err := poolArgument(args, workspace)
			if err != nil {
				return err
			}
			return a.changeLimits(cmd.Context(), func(ctx context.Context, s *session) error { return s.RemoveLimit(ctx, pool) })
		},
	}
	cmd.Flags().BoolVar(&workspace, "workspace", false, "remove the limit of the whole workspace")
	return cmd
}

func (a *app) applyLimitsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "apply",
		Short: "Apply the limits of this project's servo.yaml, and remove all others",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := a.settings()
			if err != nil {
				return err
			}
			return a.changeLimits(cmd.Context(), func(ctx context.Context, s *session) error { return s.ApplyLimits(ctx, limitsOf(p)) })
		},
	}
}

// poolArgument returns the pool named by the arguments, or "" for the workspace.
func poolArgument(args []string, workspace bool) (string, error) {
	switch {
	case workspace && len(args) > 0:
		return "", usagef("pool %s and --workspace cannot be combined: remove one", args[0])
	case workspace:
		return "", nil
	case len(args) == 0 || args[0] == "":
		return "", usagef("missing argument POOL: name a pool, or use --workspace")
	case len(args[0]) > event.MaxName:
		return "", usagef("pool name of %d bytes: at most %d are allowed", len(args[0]), event.MaxName)
	}
	return args[0], nil
}

// limitsOf returns the limits in a project's servo.yaml.
func limitsOf(p *project.Project) engine.Limits {
	return engine.Limits{Workspace: p.MaxConcurrentTasks, Pools: p.Pools}
}

// listLimits lists the limits in force.
func (a *app) listLimits(ctx context.Context) error {
	p, err := a.settings()
	if err != nil {
		return err
	}
	s, err := a.current(ctx, p)
	if err != nil {
		return err
	}
	return list(a, limitColumns, view.Limits(s))
}

var limitColumns = []column[view.LimitInfo]{
	{Name: "scope", Value: func(l view.LimitInfo) any { return l.Scope }},
	{Name: "name", Value: func(l view.LimitInfo) any { return orNil(l.Name) }},
	{Name: "slots", Value: func(l view.LimitInfo) any { return l.Slots }, Text: func(l view.LimitInfo) any { return number(view.Grouped(int64(l.Slots))) }},
	{Name: "in_use", Value: func(l view.LimitInfo) any { return l.InUse }, Text: func(l view.LimitInfo) any { return number(view.Grouped(int64(l.InUse))) }},
}

// changeLimits changes limits for an explicit command. It warns if the next run of the folder's project restores the
// limits in servo.yaml.
func (a *app) changeLimits(ctx context.Context, change func(context.Context, *session) error) error {
	p, err := a.settings()
	if err != nil {
		return err
	}
	return a.do(ctx, p, func(ctx context.Context, s *session) error {
		if err := change(ctx, s); err != nil {
			return err
		}
		owner, err := projectOf(s.dir)
		if err != nil || owner == "" {
			return err
		}
		their, err := project.LoadSettings(owner, a.projectOptions())
		if err != nil {
			return nil //nolint:nilerr // a project with problems does not apply its limits
		}
		snap, err := s.Current(ctx)
		if err != nil || their.Domain != s.Domain() {
			return err
		}
		if want, have := limitsOf(their), engine.LimitsOf(snap.State); want.Workspace != have.Workspace || !maps.Equal(want.Pools, have.Pools) {
			a.warn("the next run of that project restores the limits in %s, which differ: change them there, too",
				filepath.Join(owner, project.ConfigFile))
		}
		return nil
	})
}

// projectOf returns the nearest folder with a servo.yaml at or above the state folder, or "" if there is none. The
// returned path contains no symbolic links.
func projectOf(dir string) (string, error) {
	if inCloud(dir) {
		return "", nil
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("find the project of the state folder: %w", err)
	}
	for {
		_, err := os.Stat(filepath.Join(dir, project.ConfigFile))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find the project of the state folder: %w", err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", nil
		}
		dir = parent
	}
}

// limits applies the limits of a project if the state folder is inside the project's folder. For any other state
// folder, it only warns of limits that differ.
func (a *app) limits(ctx context.Context, s *session, p *project.Project) error {
	root, err := filepath.EvalSymlinks(p.Root)
	if err != nil {
		return fmt.Errorf("find the project's folder: %w", err)
	}
	owner, err := projectOf(s.dir)
	if err != nil {
		return err
	}
	if owner == root {
		return s.ApplyLimits(ctx, limitsOf(p))
	}
	snap, err := s.Current(ctx)
	if err != nil {
		return err
	}
	for _, text := range differingLimits(snap.State, p) {
		a.warn("%s; the state %s is not in this project's folder: apply servo.yaml with `%s limits apply`",
			text, s.dir, a.name())
	}
	return nil
}

// differingLimits describes the limits of a project that are not in force.
func differingLimits(s *state.State, p *project.Project) []string {
	var texts []string
	if slots, _ := s.SlotLimit(event.ScopeWorkspace, ""); p.MaxConcurrentTasks > 0 && slots != p.MaxConcurrentTasks {
		texts = append(texts, fmt.Sprintf("the workspace has %s, but servo.yaml says %d", plural(int(slots), "slot"), p.MaxConcurrentTasks))
	}
	for _, pool := range slices.Sorted(maps.Keys(p.Pools)) {
		slots, limited := s.SlotLimit(event.ScopePool, pool)
		switch {
		case !limited:
			texts = append(texts, fmt.Sprintf("pool %s has no limit, but servo.yaml says %d", pool, p.Pools[pool]))
		case slots != p.Pools[pool]:
			texts = append(texts, fmt.Sprintf("pool %s has %s, but servo.yaml says %d", pool, plural(int(slots), "slot"), p.Pools[pool]))
		}
	}
	return texts
}
