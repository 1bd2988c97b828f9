package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// executeCommand runs the task's command. The files in its output folder are the task's output.
func (a *attempt) executeCommand(ctx context.Context, t *work, inputs []input) ([]outputFile, error) {
	secrets, err := a.findSecrets(ctx, t) // resolve secrets first: if one is missing, all other work is wasted
	if err != nil {
		return nil, err
	}
	if err := a.fetch(ctx, inputs); err != nil {
		return nil, err
	}
	if err := a.layOutInputs(ctx, t, inputs); err != nil {
		return nil, err
	}
	output, err := a.folder("output")
	if err != nil {
		return nil, err
	}
	cwd := t.root
	if cwd == "" {
		if cwd, err = a.folder("work"); err != nil {
			return nil, err
		}
	}
	env, err := a.environ(t, secrets, inputs, output)
	if err != nil {
		return nil, err
	}
	program, err := findProgram(t.Command[0], cwd, env)
	if err != nil {
		a.output.printf("%v\n", err)
		return nil, err
	}
	copies := a.copyStamps(inputs)
	err = a.execute(ctx, &exec.Cmd{Path: program, Args: t.Command, Dir: cwd, Env: env})
	if changed := a.changedInput(ctx, inputs, copies); changed != nil {
		a.output.printf("%v\n", changed)
		return nil, changed
	}
	if err != nil {
		return nil, a.classify(err, t.ExitCodes)
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause // the command may have exited with 0 after SIGTERM, with an incomplete output
	}
	made, err := collect(output)
	switch {
	case err != nil:
	case t.Batch:
		made, err = t.arrange(output, made)
	default:
		made, err = a.convertText(ctx, t, made)
	}
	if err != nil {
		a.output.printf("%v\n", err)
	}
	return made, err
}

// execute runs a program until it exits. Its output goes to the log, with secrets masked.
func (a *attempt) execute(ctx context.Context, cmd *exec.Cmd) error {
	errorTail := &lastLines{}
	merged := newStreams(&a.output)
	stdout, stderr := a.mask.Writer(&merged.all[0]), a.mask.Writer(io.MultiWriter(&merged.all[1], errorTail))
	cmd.Stdout, cmd.Stderr = stdout, stderr
	a.showLog()
	a.storeParts()
	// The variable that tags the processes contains the folder of this execution, because another worker may execute
	// the same attempt on this machine.
	p, err := a.w.launch(cmd, "SERVO_OUTPUT="+a.dir+string(filepath.Separator))
	if err != nil {
		return launchFailure(cmd.Path, err)
	}
	stop := background(ctx, func(ctx context.Context) { merged.run(ctx, a.w.cfg.Clock) })
	err = p.wait(ctx, a.w.cfg.Clock)
	stop()
	a.addCPU(cpuOf(cmd.ProcessState))
	_, _ = stdout.Flush(), stderr.Flush() // writing to memory cannot fail
	merged.flush()
	if err != nil {
		return exitFailure(err, errorTail, cmd.Args[0])
	}
	return nil
}

func launchFailure(program string, err error) error {
	if errors.Is(err, syscall.E2BIG) {
		return permanent(CodeInvalidInput, "start %s: its arguments and environment are too large: %w", program, err)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOEXEC) || errors.Is(err, fs.ErrNotExist) {
		return permanent(CodeCommandNotFound, "start %s: %w: this machine cannot execute it", program, err)
	}
	return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("start %s: %w", program, err))
}

// inputDir returns the folder of an input.
func (a *attempt) inputDir(asset ids.AssetKey) string {
	return filepath.Join(a.dir, "inputs", asset.SQL())
}

// layOutInputs creates the folders of the inputs, unless they exist.
func (a *attempt) layOutInputs(ctx context.Context, t *work, inputs []input) error {
	if a.staged.laidOut {
		return nil
	}
	for i := range inputs {
		if err := a.layOut(ctx, t, &inputs[i]); err != nil {
			return err
		}
	}
	a.staged.laidOut = true
	return nil
}

// layOut creates the folder of one input, with links to its files or, for CSV, one converted file.
func (a *attempt) layOut(ctx context.Context, t *work, in *input) error {
	dir := a.inputDir(in.asset)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("create scratch folder: %w", err))
	}
	if t.InputFormat == plan.FormatCSV {
		return a.convert(ctx, t, in, filepath.Join(dir, "data.csv"))
	}
	for _, p := range in.parts {
		if err := p.link(dir); err != nil {
			return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("link input %s: %w", in.asset, err))
		}
	}
	return nil
}

// link creates links to the part's files. It names the links to Parquet files {partition}.parquet,
// {partition}~2.parquet and so on. A link to another file keeps the name of the file, in a folder of the partition.
// Two links never get the same name, because the names of partitions contain neither ~ nor %2E. Only link adds these
// characters.
func (p *part) link(dir string) error {
	segment, n := contract.PartitionSegment(p.partitionKey), 0
	folder := segment
	if plain, ok := strings.CutSuffix(segment, ".parquet"); ok {
		folder = plain + "%2Eparquet"
	}
	for i, file := range p.marker.Files {
		name := filepath.Join(folder, filepath.FromSlash(file.Name))
		if isParquet(file.Name) {
			name = segment + ".parquet"
			if n++; n > 1 {
				name = segment + "~" + strconv.Itoa(n) + ".parquet"
			}
		}
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		if err := os.Symlink(p.paths[i], target); err != nil {
			return err
		}
	}
	return nil
}

// convert writes an input to a CSV file with a header.
func (a *attempt) convert(ctx context.Context, t *work, in *input, target string) (err error) {
	rows := a.noRows(t)
	if in.asset != a.asset || len(in.parts) > 0 {
		files, err := in.rows()
		if err != nil {
			return err
		}
		rows = "SELECT * FROM " + readParquet(files)
	}
	d, err := a.openDuckDB(ctx)
	if err != nil {
		return sqlFailure(err)
	}
	defer func() {
		if closeErr := d.close(); closeErr != nil && err == nil {
			err = sqlFailure(closeErr)
		}
	}()
	if _, err := d.exec(ctx, "COPY ("+rows+") TO "+quote(target)+" (FORMAT csv, HEADER)"); err != nil {
		return sqlFailure(fmt.Errorf("convert input %s to CSV: %w", in.asset, a.brokenInput(ctx, []input{*in}, err)))
	}
	return nil
}

// taskContext is the content of SERVO_CONTEXT.
type taskContext struct {
	Tenant            string            `json:"tenant_id"`
	Workspace         string            `json:"workspace_id"`
	RunID             string            `json:"run_id"`
	TaskKey           string            `json:"task_key"`
	Attempt           int32             `json:"attempt"`
	AttemptID         string            `json:"attempt_id"`
	MaterializationID string            `json:"materialization_id"`
	AssetKey          string            `json:"asset_key"`
	Partition         map[string]string `json:"partition,omitempty"`
	// Partitions are the partitions of a task whose asset has the setting `batch`. In this case, Partition is absent.
	Partitions []ids.Partition `json:"partitions,omitempty"`
	// Vars are the project's variables that the asset declares, as text.
	Vars map[string]string `json:"vars,omitempty"`
	// Inputs are the inputs' folders, by asset key.
	Inputs map[string]string `json:"inputs,omitempty"`
	Output string            `json:"output"`
}

// environ returns the command's environment. If two entries have the same name, the later one applies.
func (a *attempt) environ(t *work, secrets []string, inputs []input, output string) ([]string, error) {
	cells, err := parseCells(t.cellKeys())
	if err != nil {
		return nil, permanent(CodePlanUnreadable, "task %s: %w", t.task.TaskKey, err)
	}
	partition := cells[0]
	// Without this variable, Python buffers its output, and the log shows nothing until 8 KiB are printed or the
	// program ends.
	env := append([]string{"PYTHONUNBUFFERED=1"}, a.inherited()...)
	for _, name := range slices.Sorted(maps.Keys(t.Env)) {
		env = append(env, name+"="+t.Env[name])
	}
	env = append(env, secrets...)
	context := taskContext{
		Tenant: a.env.Tenant, Workspace: a.env.Workspace, RunID: a.env.RunID, TaskKey: a.env.TaskKey,
		Attempt: a.env.Attempt, AttemptID: a.env.AttemptID, MaterializationID: a.env.MaterializationID,
		AssetKey: a.env.AssetKey, Partition: partition, Vars: map[string]string{},
		Inputs: map[string]string{}, Output: output,
	}
	if t.Batch {
		context.Partition, context.Partitions = nil, cells
	}
	for _, dimension := range partition.Dimensions() {
		env = append(env, "SERVO_PARTITION_"+plan.VariableName(partitionVariable(&t.Work, dimension))+"="+strings.Join(valuesIn(cells, dimension), "\n"))
	}
	if p := t.task.Period; p != nil {
		for _, dimension := range periodDimensions(t, partition) {
			name := "SERVO_PARTITION_" + plan.VariableName(dimension)
			env = append(env, name+"_START="+p.Start.Format(time.RFC3339), name+"_END="+p.End.Format(time.RFC3339))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Vars)) {
		env = append(env, "SERVO_VAR_"+plan.VariableName(name)+"="+t.Vars[name].Value)
		context.Vars[name] = t.Vars[name].Value
	}
	named := map[string]ids.AssetKey{}
	for _, in := range inputs {
		name := plan.InputVariable(in.asset)
		if other, ok := named[name]; ok {
			return nil, permanent(CodeInvalidInput, "inputs %s and %s are both called %s: rename one of the assets", other, in.asset, name)
		}
		named[name] = in.asset
		context.Inputs[in.asset.String()] = a.inputDir(in.asset)
		env = append(env, name+"="+a.inputDir(in.asset))
	}
	text, err := json.Marshal(context)
	if err != nil {
		return nil, fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("encode SERVO_CONTEXT: %w", err))
	}
	env = append(env, a.advice()...)
	for _, own := range [][2]string{{"SERVO_STATE=", a.w.cfg.State}, {"SERVO_ENV=", a.w.cfg.Environment}} {
		if own[1] != "" {
			env = append(env, own[0]+own[1])
		}
	}
	return append(env, "SERVO_OUTPUT="+output, "SERVO_ERROR="+filepath.Join(a.dir, errorFile), "SERVO_CONTEXT="+string(text),
		"SERVO_BIN="+a.w.cfg.ServoBin), nil
}

// findProgram finds a program. If its name contains a slash, the name is a path relative to cwd; otherwise findProgram
// searches the PATH of env.
func findProgram(name, cwd string, env []string) (string, error) {
	var candidates []string
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(cwd, name)
		}
		candidates = []string{name}
	} else {
		for _, dir := range filepath.SplitList(lookup(env, "PATH")) {
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(cwd, dir)
			}
			candidates = append(candidates, filepath.Join(dir, name))
		}
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	if len(candidates) == 1 {
		return "", permanent(CodeCommandNotFound, "cannot execute %s: the file is missing, or it has no execute permission", candidates[0])
	}
	return "", permanent(CodeCommandNotFound, "program %q is not in PATH: install it on the worker, or write its full path", name)
}

// lookup returns the last value of a variable in an environment.
func lookup(env []string, name string) string {
	for _, entry := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// collect returns the files in the output folder of a command.
func collect(dir string) ([]outputFile, error) {
	makeReadable(dir)
	var made []outputFile
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case !entry.Type().IsRegular():
			return permanent(CodeInvalidOutput, "output %.200q is not a regular file (%s): write only files and folders to SERVO_OUTPUT", name, entry.Type())
		case len(made) == contract.MaxFiles:
			return permanent(CodeInvalidOutput, "the output has more than %d files: write fewer", contract.MaxFiles)
		}
		file := outputFile{name: name, path: path, open: func() (*os.File, error) { return os.OpenInRoot(dir, filepath.FromSlash(name)) }}
		if err := file.describe(); err != nil {
			return err
		}
		made = append(made, file)
		return nil
	})
	if err != nil {
		return nil, fail(CodeInvalidOutput, CategoryUser, fmt.Errorf("read output: %w", err))
	}
	return made, nil
}
