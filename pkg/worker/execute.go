package worker

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/source"
)

// Executor executes a task. If it is set, it replaces DuckDB and commands. It writes files to the execution's Output,
// and returns early when ctx is done. If it returns an error that Files returned, the task fails in the same way as
// with a query or a command. Any other error is a retryable failure of the task.
type Executor func(ctx context.Context, e Execution) error

// Execution describes one task to an [Executor].
type Execution struct {
	RunID, TaskKey string
	Attempt        int32
	Command        []string
	// Partitions are the partitions of a task whose asset has the setting `batch`. Each partition has a folder in
	// Output: see the reference of batches.
	Partitions []ids.Partition
	// Inputs are the URIs of the materializations to read, in the order of the assets and
	// partitions that the task declares.
	Inputs []string
	// Files returns the files of the inputs, in the same order, as local copies whose size and CRC-32C
	// were verified. The first call fetches them.
	Files func() ([]InputFile, error)
	// Rows returns the rows of the inputs in the same order. If a query would read a merged file instead of the files
	// of several outputs, one element of the result stands for these outputs and names the merged file. The first call
	// fetches the files.
	Rows func() ([]InputRows, error)
	// Output returns a local folder for the output files. The first call creates it.
	Output func() (string, error)
}

// InputFile is a file of an input.
type InputFile struct {
	Key  string // the key of the object
	Path string // the path of the file on this machine
}

// InputRows are the rows of one output or, if Merged is set, of several neighbouring outputs.
type InputRows struct {
	// Files are the Parquet files of these outputs. If Merged is set, the files have keys, but may have no paths.
	Files []InputFile
	// If the rows are in a merged file, which a [MergeWrite] has written, Merged is the path of that file. First is the
	// position of the first cell to read in it, and Cells is the number of cells to read.
	Merged       string
	First, Cells int
}

// rows fetches the files that a query would read, and returns them in the order of the inputs.
func (a *attempt) rows(ctx context.Context, t *work, inputs []input) ([]InputRows, error) {
	inputs = a.useMerged(ctx, nil, t, inputs)
	if err := a.fetch(ctx, inputs); err != nil {
		return nil, err
	}
	var found []InputRows
	for i := range inputs {
		in, runs := &inputs[i], inputs[i].merged
		for j := 0; j < len(in.parts); j++ {
			if len(runs) > 0 && runs[0].from == j {
				run := InputRows{Merged: runs[0].path, First: runs[0].first, Cells: runs[0].to - j}
				for _, p := range in.parts[j:runs[0].to] {
					run.Files = append(run.Files, p.parquetFiles()...)
				}
				found, j, runs = append(found, run), runs[0].to-1, runs[1:]
				continue
			}
			found = append(found, InputRows{Files: in.parts[j].parquetFiles()})
		}
	}
	return found, nil
}

// parquetFiles returns the Parquet files of a part. Files that were not fetched have no path.
func (p *part) parquetFiles() (found []InputFile) {
	for i, f := range p.marker.Files {
		if !isParquet(f.Name) {
			continue
		}
		file := InputFile{Key: p.marker.URI + f.Name}
		if p.paths != nil {
			file.Path = p.paths[i]
		}
		found = append(found, file)
	}
	return found
}

// files fetches the input files and returns them in the order of the inputs.
func (a *attempt) files(ctx context.Context, inputs []input) ([]InputFile, error) {
	if err := a.fetch(ctx, inputs); err != nil {
		return nil, err
	}
	var found []InputFile
	for _, in := range inputs {
		for _, p := range in.parts {
			for i, f := range p.marker.Files {
				found = append(found, InputFile{Key: p.marker.URI + f.Name, Path: p.paths[i]})
			}
		}
	}
	return found, nil
}

// executeOther calls the configured executor.
func (a *attempt) executeOther(ctx context.Context, t *work, inputs []input) ([]outputFile, error) {
	asked := false
	output := sync.OnceValues(func() (string, error) {
		asked = true
		return a.folder("output")
	})
	e := Execution{RunID: a.env.RunID, TaskKey: a.env.TaskKey, Attempt: a.env.Attempt, Command: t.Command, Output: output}
	if t.Batch {
		cells, err := parseCells(t.cellKeys())
		if err != nil {
			return nil, permanent(CodePlanUnreadable, "task %s: %w", t.task.TaskKey, err)
		}
		e.Partitions = cells
	}
	e.Files = sync.OnceValues(func() ([]InputFile, error) { return a.files(ctx, inputs) })
	e.Rows = sync.OnceValues(func() ([]InputRows, error) { return a.rows(ctx, t, inputs) })
	for _, in := range inputs {
		for _, p := range in.parts {
			e.Inputs = append(e.Inputs, p.marker.URI)
		}
	}
	if err := a.w.cfg.Executor(ctx, e); err != nil {
		a.staged.unmerged = nil
		if known, ok := errors.AsType[*failure](err); ok {
			return nil, known
		}
		return nil, &failure{CodeExitStatus, CategoryUser, true, err}
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause // the executor was stopped, so its output may be incomplete even though it returned no error
	}
	if !asked {
		return nil, nil // the executor has not asked for the folder, so there are no files
	}
	dir, err := output()
	if err != nil {
		return nil, err
	}
	made, err := collect(dir)
	if err != nil || !t.Batch {
		return made, err
	}
	return t.arrange(dir, made)
}

// executeWork executes the query or the command.
func (a *attempt) executeWork(ctx context.Context, t *work, inputs []input) ([]outputFile, error) {
	if a.w.cfg.Executor != nil {
		return a.executeOther(ctx, t, inputs)
	}
	if err := a.scratch(); err != nil {
		return nil, err
	}
	if err := a.findProject(ctx, t); err != nil {
		return nil, err
	}
	execute := a.executeCommand
	if t.SQL != "" {
		execute = a.executeSQL
	}
	if len(t.Files) == 0 || t.root == "" || t.unpacked {
		return execute(ctx, t, inputs)
	}
	code := a.w.caches.codeTexts.Watch(t.root, t.Files)
	made, err := execute(ctx, t, inputs)
	if a.codeChanged = code.Changed(); a.codeChanged {
		a.log.WarnContext(ctx, "files of the code have changed since the run was planned; the output counts as stale", "task", a.env.TaskKey)
	}
	return made, err
}

// findProject makes the project's files available, and returns an error if they are not on this
// machine.
func (a *attempt) findProject(ctx context.Context, t *work) error {
	if err := a.unpackSource(ctx, t); err != nil {
		return err
	}
	if t.root == "" {
		return nil
	}
	if home := a.w.cfg.Home; home != "" && a.w.cfg.Project == "" && !t.unpacked && !source.SameFolder(home, t.root) {
		return permanent(CodeProjectMissing,
			"the run was planned in the project folder %s, but this state belongs to the project in %s: run the failed partitions with the files of that project: `servo run --failed-only`", t.root, home)
	}
	if info, err := os.Stat(t.root); err != nil || !info.IsDir() {
		return permanent(CodeProjectMissing,
			"the project's folder %s is not on this machine: if the project has moved, execute `servo run --failed-only` in its new folder; otherwise start `servo worker` with --project", t.root)
	}
	return nil
}
