package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// maxVerdict limits the size of the verdict that a command writes, in bytes.
const maxVerdict = 64 << 10

// commandVerdict is the content of the file SERVO_VERDICT, which the command of a check may write.
type commandVerdict struct {
	Passed  *bool  `json:"passed"`
	Failing int64  `json:"failing"`
	Message string `json:"message"`
}

// errChangedOutput is a part of the error about a check that has changed the output.
var errChangedOutput = errors.New("changed the output file")

// command executes a check that is a command. If the command exits with 0 and writes no verdict, the check has passed.
// If it exits with another status, the check is broken.
func (r *checkRun) command(ctx context.Context, c *quality.Check) (event.CheckResult, error) {
	var none event.CheckResult
	if err := r.layOutCandidate(); err != nil {
		return none, err
	}
	if err := r.layOutInputs(ctx, r.t, r.inputs); err != nil {
		return none, err
	}
	secrets, err := r.findSecrets(ctx, r.t)
	if err != nil {
		return none, err
	}
	folder, err := r.folder("checks")
	if err != nil {
		return none, err
	}
	cwd := r.t.root
	if cwd == "" {
		if cwd, err = r.folder("work"); err != nil {
			return none, err
		}
	}
	env, err := r.environ(r.t, secrets, r.inputs, r.candidate)
	if err != nil {
		return none, err
	}
	verdict := filepath.Join(folder, c.Name+".json")
	env = append(env, "SERVO_CHECK="+c.Name, "SERVO_VERDICT="+verdict)
	program, err := findProgram(c.Command[0], cwd, env)
	if err != nil {
		return none, err
	}
	// The task's command may have created this file.
	if err := os.Remove(verdict); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return none, fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("remove an earlier verdict: %w", err))
	}
	before, laidOut := r.stamps(), r.inputStamps()
	err = r.execute(ctx, &exec.Cmd{Path: program, Args: c.Command, Dir: cwd, Env: env})
	// The check may have timed out. The files that it has changed must be found even then.
	if changed := r.changedInput(context.WithoutCancel(ctx), r.inputs, nil); changed != nil {
		return none, changed
	}
	if !maps.Equal(laidOut, r.inputStamps()) {
		return none, permanent(CodeInvalidInput, "check %s has changed the folder of an input: a check may only read its inputs", c.Name)
	}
	if name := changedFile(before, r.stamps()); name != "" {
		return none, permanent(CodeInvalidOutput, "check %s has %w %s: a check may only read the output", c.Name, errChangedOutput, name)
	}
	if err != nil {
		return none, err
	}
	return r.readVerdict(c, verdict)
}

// layOutCandidate creates a folder with links to the files of the output. Files that are not stored yet become
// read-only.
func (r *checkRun) layOutCandidate() (err error) {
	if r.candidate != "" {
		return nil
	}
	dir, err := r.folder("candidate-" + r.phase)
	if err != nil {
		return err
	}
	for i := range r.made {
		const readOnly = 0o400
		target := filepath.Join(dir, filepath.FromSlash(r.made[i].name))
		err := os.MkdirAll(filepath.Dir(target), 0o700)
		if err == nil && !r.made[i].stored {
			err = os.Chmod(r.made[i].path, readOnly)
		}
		if err == nil {
			err = os.Symlink(r.made[i].path, target)
		}
		if err != nil {
			return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("link the output for a check: %w", err))
		}
	}
	r.candidate = dir
	return nil
}

// stamps returns a stamp for each of the output's files. The stamp of a file changes whenever the file is written.
func (r *checkRun) stamps() map[string]string {
	found := make(map[string]string, len(r.made))
	for i := range r.made {
		found[r.made[i].name] = stampAt(r.made[i].path)
	}
	return found
}

// inputStamps returns the stamps of the files in the folders of the inputs, and of their downloaded copies. It does not
// examine stored objects, because [attempt.changedInput] does.
func (r *checkRun) inputStamps() map[string]string {
	found := map[string]string{}
	for _, dir := range []string{"inputs", "fetched"} {
		_ = filepath.WalkDir(filepath.Join(r.dir, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return nil //nolint:nilerr // the result omits the files of an unreadable folder
			}
			if info, err := entry.Info(); err == nil {
				found[path] = filecheck.Stamp(info)
			}
			return nil
		})
	}
	return found
}

// changedFile returns the name of a file whose stamp differs, or "".
func changedFile(before, after map[string]string) string {
	for name, stamp := range before {
		if after[name] != stamp {
			return name
		}
	}
	return ""
}

// readVerdict reads the verdict of a command.
func (r *checkRun) readVerdict(c *quality.Check, file string) (event.CheckResult, error) {
	result := c.Judge(quality.Compiled{}, quality.Measured{Rows: r.rows})
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return result, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxVerdict) {
		err = fmt.Errorf("the verdict must be a file of at most %d bytes", maxVerdict)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(file) //nolint:gosec // a file of this execution
	}
	var v commandVerdict
	if err == nil {
		err = exactKeys(data)
	}
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err == nil && (v.Passed == nil || v.Failing < 0) {
		err = errors.New(`expected {"passed": true, "failing": 0, "message": "…"}`)
	}
	if err != nil {
		return result, permanent(CodeCheckError, "read the verdict in SERVO_VERDICT: %w", err)
	}
	result.Passed, result.Failing = *v.Passed, v.Failing
	if v.Message != "" {
		result.Message = quality.Short(v.Message)
	} else if !result.Passed {
		result.Message = "the command reports a failure"
	}
	return result, nil
}

// exactKeys returns an error unless data is an object with the fields of [commandVerdict], each at most once. Without
// this check, the JSON library would ignore the case of names, and would accept repeated fields.
func exactKeys(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return cmp.Or(err, errors.New("expected an object"))
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		switch {
		case seen[name]:
			return fmt.Errorf("the field %q occurs twice", name)
		case !slices.Contains([]string{"passed", "failing", "message"}, name):
			return fmt.Errorf("unknown field %.60q: use passed, failing and message", name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	return nil
}
