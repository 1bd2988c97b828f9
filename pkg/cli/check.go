package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

func (a *app) checkCommand() *cobra.Command {
	f := runFlags{wait: true}
	cmd := &cobra.Command{
		Use:         "check [SELECTION…]",
		Annotations: writesRows,
		Short:       "Run the checks of assets on their current outputs, and materialize nothing",
		Long: "Run the checks of assets on the outputs that readers see. Nothing is computed or published, and no output\n" +
			"changes. Assets without checks and partitions without an output are left out. Without -p, all partitions\n" +
			"are checked. The exit code is 1 if a critical check fails.",
		Example: "  servo check clean/daily\n  servo check --all -p date=2025-01-01..2025-01-31",
		Args:    takes("[SELECTION…]"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.check(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.assets.all, "all", false, "check every asset of the project")
	f.assets.add(cmd, "check")
	flags.StringArrayVarP(&f.partitions, "partition", "p", nil, "partitions to check: date=2025-01-15 or date=2025-01-01..2025-01-31 (repeatable)")
	flags.BoolVar(&f.allowIncomplete, "allow-incomplete", false, "accept missing partitions of upstream assets that a check reads")
	flags.Int32Var(&f.parallelism, "max-parallelism", 0, "maximum number of concurrent tasks of the run (default: max_parallelism of servo.yaml)")
	flags.DurationVar(&f.timeout, "timeout", 0, "time limit of the run, for example 2h")
	a.traceFlags(cmd)
	return cmd
}

// check triggers a run that only executes checks. Unlike `servo run`, it deploys nothing, because a deployment would
// change which partitions are stale.
func (a *app) check(ctx context.Context, f runFlags, args []string) error {
	request, err := f.request(args)
	if err != nil {
		return err
	}
	choice, err := f.assets.parse(args)
	if err != nil {
		return err
	}
	if err := a.checkSecrets(); err != nil {
		return err
	}
	request.Trigger = event.Trigger{Type: "manual", UserID: a.User}
	request.Plan.ChecksOnly = true
	choose := func(assets []plan.Asset) ([]ids.AssetKey, error) {
		chosen, err := choice.resolve(assets)
		request.Roots, request.Plan.Select, request.Plan.Matched = chosen.Roots, chosen.Named, chosen.Matched
		return chosen.Named, err
	}
	p, err := a.checkedProject(ctx, &request, choose)
	if err != nil {
		return err
	}
	request.Plan.Data, request.Plan.Assets = p.Data, p.Assets
	return a.start(ctx, f, p, &request, func(ctx context.Context, s *session) (engine.RunHandle, error) { return s.Run(ctx, request) })
}

// checkedProject returns the project whose checks run. If the environment deploys explicitly, this is the deployed
// release. Otherwise, it is the project in the folder.
func (a *app) checkedProject(
	ctx context.Context, request *engine.RunRequest, choose func([]plan.Asset) ([]ids.AssetKey, error),
) (*project.Project, error) {
	dir, err := a.projectDir()
	if err != nil {
		return nil, err
	}
	// An error is ignored here, because usableProject reports all problems of the project.
	if settings, err := project.LoadSettings(dir, a.projectOptions()); err == nil && explicit(settings) {
		d, err := a.deployedRelease(ctx, settings)
		if err != nil {
			return nil, err
		}
		_, err = choose(d.project.Assets)
		request.Release, request.Plan.Source = d.sha, d.release.Source
		return d.project, err
	}
	p, err := a.usableProject(ctx, choose)
	if err != nil {
		return nil, err
	}
	if len(p.Assets) == 0 {
		return nil, errors.New("nothing to check: the project declares no assets")
	}
	request.Plan.Root = p.Root
	return p, nil
}
