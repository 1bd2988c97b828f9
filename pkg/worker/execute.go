package worker

import (
	"context"
	"os"
	"sync"
)

// Executor does the work of a task in the place of DuckDB and commands. It
// leaves files in the execution's Output and ends early when ctx does. An error
// is the task's own failure, to be retried.
type Executor func(ctx context.Context, e Execution) error

// Execution is what an [Executor] is to do.
type Execution struct {
	RunID, TaskKey string
	Attempt        int32
	Command        []string
	// Inputs are the places of the materializations to read, in the order of the
	// assets and partitions that the task declares.
	Inputs []string
	// Output gives a folder on this machine that takes the files it makes. It is made
	// when it is first asked for.
	Output func() (string, error)
}

// executeOther has the configured executor do the work.
func (a *attempt) executeOther(ctx context.Context, t *work, inputs []input) ([]outputFile, error) {
	asked := false
	output := sync.OnceValues(func() (string, error) {
		asked = true
		return a.folder("output")
	})
	e := Execution{RunID: a.env.RunID, TaskKey: a.env.TaskKey, Attempt: a.env.Attempt, Command: t.Command, Output: output}
	for _, in := range inputs {
		for _, p := range in.parts {
			e.Inputs = append(e.Inputs, p.marker.URI)
		}
	}
	if err := a.w.cfg.Executor(ctx, e); err != nil {
		return nil, &failure{CodeExitStatus, CategoryUser, true, err}
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause // it ended well on being stopped, perhaps half done
	}
	if !asked {
		return nil, nil // without a folder there are no files
	}
	dir, err := output()
	if err != nil {
		return nil, err
	}
	return collect(dir)
}

// executeWork runs the query or the command.
func (a *attempt) executeWork(ctx context.Context, t *work, inputs []input) ([]outputFile, error) {
	if a.w.cfg.Executor != nil {
		return a.executeOther(ctx, t, inputs)
	}
	if err := a.scratch(); err != nil {
		return nil, err
	}
	if t.root != "" {
		if info, err := os.Stat(t.root); err != nil || !info.IsDir() {
			return nil, refuse(CodeProjectMissing,
				"the project's folder %s is not on this machine: run the worker where the project is, or say where that is with --project", t.root)
		}
	}
	if t.SQL != "" {
		return a.executeSQL(ctx, t, inputs)
	}
	return a.executeCommand(ctx, t, inputs)
}
