package worker_test

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func TestCommandGetsContextAndWritesOutput(t *testing.T) {
	const key = "raw/events[date=2012-01-01]"
	work := shell(`set -e
		echo "to the log"; echo "and errors" >&2
		mkdir -p "$SERVO_OUTPUT/deep/er"
		pwd > "$SERVO_OUTPUT/cwd"
		printf %s "$SERVO_CONTEXT" > "$SERVO_OUTPUT/deep/context.json"
		env > "$SERVO_OUTPUT/deep/er/env"`)
	work.Env = map[string]string{"OWN": "value", "SERVO_BIN": "not this"}
	work.Text = &plan.TextOutput{Format: plan.TextNone} // the worker must not convert context.json to a table
	w := newFixture(t, nil, map[string]plan.Work{"raw/events": work}, task(key, `{"date":"2012-01-01"}`, nil))
	end := w.run(key)
	require.Zero(t, end.Output.RowCount)
	require.Empty(t, end.Output.SchemaHash)
	names := []string{}
	for _, f := range w.marker(key).Files {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"cwd", "deep/context.json", "deep/er/env"}, names)
	require.Equal(t, w.root+"\n", w.read(end.Output.URI+"cwd"))
	env := w.read(end.Output.URI + "deep/er/env")
	require.Contains(t, env, "OWN=value\n")
	require.Contains(t, env, "SERVO_BIN=/opt/servo\n")
	require.Contains(t, env, "SERVO_THREADS=2\n")
	require.Contains(t, env, "SERVO_MEMORY_BYTES=256000000\n")
	require.Contains(t, env, "SERVO_PARTITION_DATE=2012-01-01\n")
	require.NotContains(t, env, "HOME=", "only Config.Environ is inherited")
	context := w.read(end.Output.URI + "deep/context.json")
	require.Contains(t, context, `"tenant_id":"acme"`)
	require.Contains(t, context, `"partition":{"date":"2012-01-01"}`)
	log := w.log(key)
	require.Contains(t, log, "to the log\n")
	require.Contains(t, log, "and errors\n")
	w.scratchIsEmpty()
}

func TestCommandWithoutOutputStoresNoLog(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": {Command: []string{"true"}}}, task("a/b", "", nil))
	end := w.run("a/b")
	require.Zero(t, end.Output.RowCount)
	require.Empty(t, w.marker("a/b").Files)
	require.Empty(t, w.keysBelow("logs/"))
}

func TestCommandReadsInputs(t *testing.T) {
	const one, two = "raw/e[date=2012-01-01]", "raw/e[date=2012-01-02]"
	inputs := map[string]plan.InputSet{"raw/e": from(one, two), "raw/notes": from("raw/notes")}
	list := shell(`cd $SERVO_INPUT_RAW_E && ls > $SERVO_OUTPUT/names && cp 'date-2012-01-02.parquet' $SERVO_OUTPUT/data.parquet &&
		cat $SERVO_INPUT_RAW_NOTES/_/n/note.txt >> $SERVO_OUTPUT/names`)
	csv := shell(`cp $SERVO_INPUT_RAW_E/data.csv $SERVO_OUTPUT/`)
	csv.InputFormat = plan.FormatCSV
	daily := plan.Work{SQL: "SELECT getvariable('date') AS day, 1 AS n", Dimensions: map[string]string{"date": "DATE"}}
	for _, store := range []*memblob.Store{nil, memblob.New(memblob.Options{})} {
		assets := map[string]plan.Work{"raw/e": daily, "raw/notes": shell("mkdir $SERVO_OUTPUT/n; echo note > $SERVO_OUTPUT/n/note.txt"), "x/list": list, "x/csv": csv}
		tasks := []plan.Task{
			task(one, `{"date":"2012-01-01"}`, nil), task(two, `{"date":"2012-01-02"}`, nil), task("raw/notes", "", nil),
			task("x/list", "", inputs, one, two, "raw/notes"),
			task("x/csv", "", map[string]plan.InputSet{"raw/e": from(one, two)}, one, two),
		}
		w := newFixture(t, nil, assets, tasks...)
		if store != nil {
			w = newFixture(t, store, assets, tasks...)
		}
		for _, key := range []string{one, two, "raw/notes"} {
			w.run(key)
		}
		end := w.run("x/list")
		require.Equal(t, "date-2012-01-01.parquet\ndate-2012-01-02.parquet\nnote\n", w.read(end.Output.URI+"names"))
		require.EqualValues(t, 1, end.Output.RowCount, "counted from the footer")
		require.NotEmpty(t, end.Output.SchemaHash)
		end = w.run("x/csv")
		require.Equal(t, "day,n\n2012-01-01,1\n2012-01-02,1\n", w.read(end.Output.URI+"data.csv"))
	}
}

// TestInputNamesDoNotCollide reads partitions whose names look like the file names that other partitions get.
func TestInputNamesDoNotCollide(t *testing.T) {
	const x, x2, file = "raw/e[p=x]", "raw/e[p=x.2]", "raw/e[p=x.parquet]"
	made := shell(`if [ "$SERVO_PARTITION_P" = x.parquet ]; then echo note > $SERVO_OUTPUT/note.txt; exit; fi
cp data/one.parquet $SERVO_OUTPUT/1.parquet; cp data/one.parquet $SERVO_OUTPUT/2.parquet`)
	made.Dimensions = map[string]string{"p": "VARCHAR"}
	w := newFixture(t, nil, map[string]plan.Work{"raw/one": query("SELECT 1 AS x"), "raw/e": made, "a/list": shell("cd $SERVO_INPUT_RAW_E && find . | LC_ALL=C sort > $SERVO_OUTPUT/names")},
		task("raw/one", "", nil), task(x, `{"p":"x"}`, nil), task(x2, `{"p":"x.2"}`, nil), task(file, `{"p":"x.parquet"}`, nil),
		task("a/list", "", map[string]plan.InputSet{"raw/e": from(x2, file, x)}, x2, file, x))
	w.file("data/one.parquet", w.read(w.run("raw/one").Output.URI+"data.parquet"))
	for _, key := range []string{x, x2, file} {
		w.run(key)
	}
	require.Equal(t, ".\n./p-x%2Eparquet\n./p-x%2Eparquet/note.txt\n./p-x.2.parquet\n./p-x.2~2.parquet\n./p-x.parquet\n./p-x~2.parquet\n",
		w.read(w.run("a/list").Output.URI+"names"))
}

// In a local store, the inputs of a command are the stored files themselves.
func TestCommandThatChangesAnInputFails(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{
		"a/z": query("SELECT 1 AS x"),
		"a/o": shell("for f in $SERVO_INPUT_A_Z/*; do chmod u+w $f; echo damaged > $f; done"),
	}, task("a/z", "", nil), task("a/o", "", map[string]plan.InputSet{"a/z": from("a/z")}, "a/z"))
	w.run("a/z")
	got := w.failed("a/o")
	require.Equal(t, worker.CodeInvalidInput, got.Code)
	require.Contains(t, got.Message, "the command has changed its input a/z: a command may only read its inputs: input file ")
	require.False(t, got.Retryable)
}

// A store that is not local gives the command copies of its inputs. The checks of the output read these copies.
func TestCommandThatChangesACopyOfAnInputFails(t *testing.T) {
	w := newFixture(t, memblob.New(memblob.Options{}), map[string]plan.Work{
		"a/z": query("SELECT 1 AS x"),
		"a/o": shell("for f in $SERVO_INPUT_A_Z/*; do echo damaged > $f; done"),
	}, task("a/z", "", nil), task("a/o", "", map[string]plan.InputSet{"a/z": from("a/z")}, "a/z"))
	w.run("a/z")
	got := w.failed("a/o")
	require.Equal(t, worker.CodeInvalidInput, got.Code)
	require.Contains(t, got.Message, "the command has changed its input a/z: a command may only read its inputs")
}

func TestCommandFailuresAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		argv      []string
		code      string
		message   string
		retryable bool
	}{
		"no program":     {[]string{"nosuchprogram"}, worker.CodeCommandNotFound, "PATH", false},
		"no file":        {[]string{"./nosuch.sh"}, worker.CodeCommandNotFound, "nosuch.sh", false},
		"not executable": {[]string{"./readme"}, worker.CodeCommandNotFound, "readme", false},
		"no format":      {[]string{"./garbage"}, worker.CodeCommandNotFound, "garbage", false},
		"status":         {[]string{"sh", "-c", "echo one; echo broken >&2; exit 3"}, worker.CodeExitStatus, "sh exited with status 3:\nbroken", true},
		"signal":         {[]string{"sh", "-c", "kill -SEGV $$"}, worker.CodeSignal, "SIGSEGV", true},
		"symlink":        {[]string{"sh", "-c", "ln -s /etc/passwd $SERVO_OUTPUT/x"}, worker.CodeInvalidOutput, "regular file", false},
		"link folder":    {[]string{"sh", "-c", "ln -s /etc $SERVO_OUTPUT/x"}, worker.CodeInvalidOutput, "regular file", false},
		"fifo":           {[]string{"sh", "-c", "mkfifo $SERVO_OUTPUT/x"}, worker.CodeInvalidOutput, "regular file", false},
		"bad name":       {[]string{"sh", "-c", `echo > "$SERVO_OUTPUT/a\\b"`}, worker.CodeInvalidOutput, "name", false},
		"bad parquet":    {[]string{"sh", "-c", "echo no > $SERVO_OUTPUT/x.parquet"}, worker.CodeInvalidOutput, "x.parquet", true},
		"too many":       {[]string{"sh", "-c", "cd $SERVO_OUTPUT; seq 10001 | xargs touch"}, worker.CodeInvalidOutput, "10000", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, nil, map[string]plan.Work{"a/b": {Command: c.argv}}, task("a/b", "", nil))
			w.file("garbage", "\x00\x01garbage")
			w.file("readme", "text")
			require.NoError(t, os.Chmod(filepath.Join(w.root, "readme"), 0o600))
			got := w.failed("a/b")
			require.Equal(t, c.code, got.Code, got.Message)
			require.Contains(t, got.Message, c.message)
			require.Equal(t, c.retryable, got.Retryable)
			require.Empty(t, w.keysBelow("assets/"))
			w.scratchIsEmpty()
		})
	}
}

func TestCommandDescribesItsError(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		codes  map[string]string
		want   event.Error
	}{
		"status 75":       {"exit 75", nil, event.Error{Code: "EXIT_STATUS", Category: "transient", Message: "sh exited with status 75", Retryable: true}},
		"status 78":       {"exit 78", nil, event.Error{Code: "EXIT_STATUS", Category: "configuration", Message: "sh exited with status 78"}},
		"declared status": {"exit 3", map[string]string{"3": "input"}, event.Error{Code: "EXIT_STATUS", Category: "input", Message: "sh exited with status 3"}},
		"other status":    {"exit 4", map[string]string{"3": "input"}, event.Error{Code: "EXIT_STATUS", Category: "user", Message: "sh exited with status 4", Retryable: true}},
		"empty file":      {": > $SERVO_ERROR; exit 4", nil, event.Error{Code: "EXIT_STATUS", Category: "user", Message: "sh exited with status 4", Retryable: true}},
		"a pipe": {
			"mkfifo $SERVO_ERROR; exit 4", nil,
			event.Error{Code: "EXIT_STATUS", Category: "user", Message: "sh exited with status 4\nthe file SERVO_ERROR is not valid: it must be a regular file", Retryable: true},
		},
		"success with file": {"echo '{}' > $SERVO_ERROR", nil, event.Error{}},
		"the whole error": {
			`echo '{"code":"X_QUOTA","category":"transient","message":"no quota","details":{"left":0},"suggested_action":"wait","retry_after_ms":5000}' > $SERVO_ERROR; exit 1`, nil,
			event.Error{Code: "X_QUOTA", Category: "transient", Message: "no quota", Retryable: true, Details: `{"left":0}`, SuggestedAction: "wait", RetryAfterMS: 5000},
		},
		"a code of Servo": {`echo '{"code":"RATE_LIMITED","retryable":false}' > $SERVO_ERROR; exit 1`, nil, event.Error{Code: "RATE_LIMITED", Category: "transient", Message: "sh exited with status 1"}},
		"a code of losses": {
			`echo '{"code":"WORKER_INTERRUPTED"}' > $SERVO_ERROR; exit 1`, nil,
			event.Error{Code: "EXIT_STATUS", Category: "user", Retryable: true, Message: "sh exited with status 1\nthe file SERVO_ERROR is not valid: code \"WORKER_INTERRUPTED\": " +
				"write X_ followed by A-Z, 0-9 and _, or one of RATE_LIMITED, NETWORK_ERROR, SERVICE_UNAVAILABLE, OUT_OF_MEMORY, DISK_FULL, INVALID_INPUT, EXIT_STATUS"},
		},
		"an unknown member": {
			`echo '{"cod":"X_A"}' > $SERVO_ERROR; exit 1`, nil,
			event.Error{Code: "EXIT_STATUS", Category: "user", Retryable: true, Message: "sh exited with status 1\nthe file SERVO_ERROR is not valid: json: unknown field \"cod\""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			work := plan.Work{Command: []string{"sh", "-c", c.script}, ExitCodes: c.codes}
			w := newFixture(t, nil, map[string]plan.Work{"a/b": work}, task("a/b", "", nil))
			if c.want == (event.Error{}) {
				w.run("a/b")
				return
			}
			require.Equal(t, c.want, *w.failed("a/b"))
		})
	}
}

// The control plane may reject a report, for example one from a newer worker.
func TestRejectedReportOfFailureIsRepeatedWithoutDetails(t *testing.T) {
	work := map[string]plan.Work{
		"a/b": shell(`echo '{"code":"X_QUOTA","message":"no quota","details":{"left":0}}' > $SERVO_ERROR; exit 1`), "a/c": shell("true"),
	}
	w := newFixture(t, nil, work, task("a/b", "", nil), task("a/c", "", nil))
	w.control.answer = func(verb string, n int) (int, any) {
		if verb == contract.VerbFinished && n != 2 {
			return http.StatusBadRequest, contract.Problem{Status: http.StatusBadRequest}
		}
		return 0, nil
	}
	require.Equal(t, event.Error{
		Code: "X_QUOTA", Category: "user", Retryable: true, Message: "no quota\nThe control plane rejected the report with the details of this error.",
	}, *w.failed("a/b"))
	require.Equal(t, http.StatusOK, w.deliver("a/c"))
	require.Equal(t, 3, w.control.calls(contract.VerbFinished), "a success is not reported as something else")
}

func TestErrorKeepsEndOfLongStderr(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(`i=0; while [ $i -lt 500 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 1`)}, task("a/b", "", nil))
	got := w.failed("a/b")
	require.Less(t, len(got.Message), 2200)
	require.True(t, strings.HasSuffix(got.Message, "line 499"))
	require.Contains(t, got.Message, "status 1:\nline ")
}

func TestInputsWithSameVariableAreRejected(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a_b/c": shell("true"), "a/b_c": shell("true"), "x/y": shell("true")},
		task("a_b/c", "", nil), task("a/b_c", "", nil),
		task("x/y", "", map[string]plan.InputSet{"a_b/c": from("a_b/c"), "a/b_c": from("a/b_c")}, "a/b_c", "a_b/c"))
	w.run("a_b/c")
	w.run("a/b_c")
	require.Contains(t, w.failed("x/y").Message, "SERVO_INPUT_A_B_C")
}

func TestLogOmitsMiddleOfLargeOutput(t *testing.T) {
	w := newFixture(t, memblob.New(memblob.Options{}), map[string]plan.Work{
		"a/b": shell("echo first; head -c 104857600 /dev/zero | tr '\\0' x; echo last"),
	}, task("a/b", "", nil))
	w.run("a/b")
	log := w.log("a/b")
	require.Less(t, len(log), 10<<20+100)
	require.True(t, strings.HasPrefix(log, "first\nxxx"))
	require.True(t, strings.HasSuffix(log, "xxxlast\n"))
	require.Contains(t, log, "\n… "+strconv.Itoa(104857600+11-10<<20)+" bytes omitted …\n")
}

// processes is a command that starts a child process. Both processes run until they are killed. The command writes
// its process id to a pipe. A read of the pipe ends when both processes are dead.
type processes struct {
	script string
	fifo   string
	pipe   *os.File
	lines  *bufio.Reader
}

func newProcesses(t *testing.T, trap string) *processes {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	return &processes{
		fifo:   fifo,
		script: trap + ` exec 3>` + fifo + `; sh -c '` + trap + ` sleep 10000 & wait; wait' & echo $$ >&3; wait; wait`,
	}
}

// started waits until the command runs, and returns its process id.
func (p *processes) started(t *testing.T) int {
	t.Helper()
	var err error
	p.pipe, err = os.Open(p.fifo) // Open blocks until the command opens the pipe
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.pipe.Close()) })
	p.lines = bufio.NewReader(p.pipe)
	line, err := p.lines.ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0))
	return pid
}

// dead waits until no process has the pipe open, and checks that the command itself is dead.
func (p *processes) dead(t *testing.T, pid int) {
	t.Helper()
	rest, err := io.ReadAll(p.lines)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
}

func TestCancelKillsCommandAndDescendants(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, task("a/b", "", nil))
	w.control.answer = cancelOnHeartbeat
	answer := w.deliverLater("a/b")
	pid := p.started(t)
	w.clock.fire(t, w.config.HeartbeatEvery)
	require.Equal(t, http.StatusOK, <-answer)
	p.dead(t, pid)
	end := w.control.end(t)
	require.Equal(t, event.Cancelled, end.Outcome)
	require.Equal(t, worker.CodeCancelled, end.Error.Code)
	require.Empty(t, w.keysBelow("assets/"))
	w.scratchIsEmpty()
}

func cancelOnHeartbeat(verb string, _ int) (int, any) {
	if verb == contract.VerbHeartbeat {
		return http.StatusOK, contract.HeartbeatResponse{ShouldCancel: true}
	}
	return 0, nil
}

func TestCancelKillsCommandThatIgnoresSIGTERM(t *testing.T) {
	p := newProcesses(t, `trap "" TERM;`)
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, task("a/b", "", nil))
	w.control.answer = cancelOnHeartbeat
	answer := w.deliverLater("a/b")
	pid := p.started(t)
	w.clock.fire(t, w.config.HeartbeatEvery)
	w.clock.fire(t, 5*time.Second)
	require.Equal(t, http.StatusOK, <-answer)
	p.dead(t, pid)
	require.Equal(t, event.Cancelled, w.control.end(t).Outcome)
}

func TestWorkerTimesOutTask(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, task("a/b", "", nil))
	answer := w.deliverLater("a/b", func(e *contract.Envelope) { e.TimeoutSec = int32(taskTimeout / time.Second) })
	pid := p.started(t)
	w.clock.fire(t, taskTimeout)
	require.Equal(t, http.StatusOK, <-answer)
	p.dead(t, pid)
	end := w.control.end(t)
	require.Equal(t, event.TimedOut, end.Outcome)
	require.Equal(t, worker.CodeTimeout, end.Error.Code)
	require.True(t, end.Error.Retryable)
}

func TestProcessLeftByCommandIsKilled(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell("exec 3>" + fifo + "; sleep 10000 & echo ok >&3")}, task("a/b", "", nil))
	answer := w.deliverLater("a/b")
	pipe, err := os.Open(fifo)
	require.NoError(t, err)
	defer pipe.Close()
	said, err := io.ReadAll(pipe) // the read ends when `sleep` has ended
	require.NoError(t, err)
	require.Equal(t, "ok\n", string(said))
	require.Equal(t, http.StatusOK, <-answer)
	require.Equal(t, event.Succeeded, w.control.end(t).Outcome)
}

func TestReplacedAttemptIsKilledWithoutReport(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, task("a/b", "", nil))
	w.control.answer = func(verb string, _ int) (int, any) {
		if verb == contract.VerbHeartbeat {
			return http.StatusConflict, contract.Problem{Status: http.StatusConflict}
		}
		return 0, nil
	}
	answer := w.deliverLater("a/b")
	pid := p.started(t)
	w.clock.fire(t, w.config.HeartbeatEvery)
	require.Equal(t, http.StatusOK, <-answer)
	p.dead(t, pid)
	require.Zero(t, w.control.calls(contract.VerbFinished))
}

func TestCloseInterruptsTasks(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script), "a/c": shell("true")}, task("a/b", "", nil), task("a/c", "", nil))
	answer := w.deliverLater("a/b")
	pid := p.started(t)
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, http.StatusOK, <-answer)
	p.dead(t, pid)
	end := w.control.end(t)
	require.Equal(t, event.Failed, end.Outcome)
	require.Equal(t, worker.CodeInterrupted, end.Error.Code)
	require.True(t, end.Error.Retryable)
	require.Equal(t, http.StatusInternalServerError, w.deliver("a/c"), "leaves it to another worker")
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	left, err := filepath.Glob(filepath.Join(w.config.ScratchDir, "worker-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
