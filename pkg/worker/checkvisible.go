package worker

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// A task of the kind check runs the checks of an asset on an output of an earlier run. Such a task executes no work and
// creates no marker, so each execution runs all checks.

// checkVisible runs the checks of both phases on the output that the plan names. An error fails the
// task.
func (a *attempt) checkVisible(ctx context.Context, t *work) error {
	inputs, err := phase(ctx, a, "stage", func(ctx context.Context) ([]input, error) { return a.resolve(ctx, t) })
	if err != nil {
		return err
	}
	began := a.now()
	_, err = phase(ctx, a, "check", func(ctx context.Context) (any, error) { return nil, a.checkOutput(ctx, t, inputs) })
	a.usage.metrics["execute_ms"] = a.now().Sub(began).Milliseconds()
	a.output.close()
	a.showLog()
	a.waitForLog(ctx, a.saveLog(err))
	return err
}

// checkOutput runs the checks of both phases. It runs the POST checks even if a PRE check has failed, so that one
// task reports all failures. (When a task materializes, a failed PRE check stops it.)
func (a *attempt) checkOutput(ctx context.Context, t *work, inputs []input) error {
	var made []outputFile
	if t.task.Checked != nil {
		own, err := a.checkedInput(ctx, t, t.task.Checked)
		if err != nil {
			return err
		}
		if made, err = a.committed(ctx, own); err != nil {
			return err
		}
	}
	final := map[string]bool{}
	for _, name := range []string{quality.Pre, quality.Post} {
		of := made
		if name == quality.Pre {
			of = nil
		}
		if err := a.runChecks(ctx, t, name, inputs, of, nil, final); err != nil {
			return err
		}
	}
	return a.gate(a.checkResults, final)
}

// checkedInput returns the output that a task checks, as an input with one partition.
func (a *attempt) checkedInput(ctx context.Context, t *work, item *plan.Input) ([]input, error) {
	asset, err := ids.ParseAssetKey(t.task.AssetKey)
	if err != nil {
		return nil, permanent(CodePlanUnreadable, "asset of %s: %w", a.env.TaskKey, err)
	}
	p, err := a.upstream(ctx, t.plan, asset, item)
	if err != nil {
		return nil, err
	}
	return []input{{asset: asset, parts: []part{p}}}, nil
}
