// Package script_test runs the scripts in testdata, which specify the servo command. Each script has its own files and
// commands. The command "servo" in a script is this test binary.
package script_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"servo": func() { os.Exit(servo()) }})
}

// servo runs the servo program like cmd/servo, as the user "tester".
func servo() int {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	signals := make(chan os.Signal, 4)
	env := cli.Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Dir: dir,
		Program: os.Args[0], User: "tester", Clock: clock.System{}, Signals: signals,
	}
	var check func()
	env.Stderr, check = predict(env)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer check()
	return cli.Main(context.Background(), env)
}

// predict runs each `servo run` with --dry-run first. The function check compares the number of tasks that the dry
// run predicted with the number that the real run has printed on standard error.
func predict(env cli.Env) (stderr io.Writer, check func()) {
	arguments := strings.Join(env.Args, " ")
	if !slices.Contains(env.Args, "run") || strings.Contains(arguments, "admin") || strings.Contains(arguments, "__complete") {
		return env.Stderr, func() {}
	}
	var answer, printed bytes.Buffer
	dry := env
	dry.Args = append(slices.DeleteFunc(slices.Clone(env.Args), func(arg string) bool { return arg == "--detach" || strings.HasPrefix(arg, "--wait") }),
		"--dry-run", "-o", "json")
	dry.Stdin, dry.Stdout, dry.Stderr = strings.NewReader(""), &answer, io.Discard
	cli.Main(context.Background(), dry)
	var predicted struct {
		Tasks int `json:"tasks"`
	}
	if json.Unmarshal(answer.Bytes(), &predicted) != nil {
		return env.Stderr, func() {} // the dry run failed or selects no assets: there is nothing to compare
	}
	return io.MultiWriter(env.Stderr, &printed), func() {
		found := regexp.MustCompile(`(?m)^run \w+: ([\d,]+) tasks?(, handed to .*)?$`).FindStringSubmatch(printed.String())
		if found == nil {
			return
		}
		if got := strings.ReplaceAll(found[1], ",", ""); got != strconv.Itoa(predicted.Tasks) {
			panic(fmt.Sprintf("servo %s: the run has %s tasks, and the dry run has %d", arguments, got, predicted.Tasks))
		}
	}
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await":   await,
			"request": request,
			"damage":  damage,
			"end":     end,
		},
	})
}

// timeout is the maximum time for which a script waits for another process.
const timeout = 30 * time.Second

// await FILE [TEXT] waits until a background process has created a file and, if TEXT is given, the file contains TEXT.
// FILE may be a pattern. Only the first file that matches is searched for TEXT.
func await(ts *testscript.TestScript, neg bool, args []string) {
	const least, most = 1, 2
	if neg || len(args) < least || len(args) > most {
		ts.Fatalf("usage: await FILE [TEXT]")
	}
	text := append(args, "")[1]
	system := clock.System{}
	for deadline := system.Now().Add(timeout); ; {
		var data []byte
		files, err := filepath.Glob(ts.MkAbs(args[0]))
		found := err == nil && len(files) > 0
		if found && text != "" {
			data, err = os.ReadFile(files[0])
		}
		if found && err == nil && strings.Contains(string(data), text) {
			return
		}
		if system.Now().After(deadline) {
			ts.Fatalf("%s did not appear with %q: %s", args[0], text, data)
		}
		ts.Check(system.Sleep(context.Background(), 10*time.Millisecond))
	}
}

// request STATE METHOD PATH [BODY [CONTENT-TYPE]] sends a request to the owner of a state folder,
// and prints status and body of the response.
func request(ts *testscript.TestScript, neg bool, args []string) {
	const least, most = 3, 5
	if neg || len(args) < least || len(args) > most {
		ts.Fatalf("usage: request STATE METHOD PATH [BODY [CONTENT-TYPE]]")
	}
	owner, err := embedded.ReadOwner(ts.MkAbs(args[0]))
	ts.Check(err)
	body, kind := "", "application/json"
	if len(args) > least {
		body = args[3]
	}
	if len(args) == most {
		kind = args[4]
	}
	req, err := http.NewRequestWithContext(context.Background(), args[1], owner.URL+args[2], strings.NewReader(body))
	ts.Check(err)
	req.Header.Set("Content-Type", kind)
	client := owner.Client()
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	ts.Check(err)
	answer, err := io.ReadAll(res.Body)
	ts.Check(errors.Join(err, res.Body.Close()))
	_, err = fmt.Fprintf(ts.Stdout(), "%d %s\n", res.StatusCode, answer)
	ts.Check(err)
}

// end STATE sends SIGTERM to the owner of a state folder. The command kill of testscript cannot do this.
func end(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: end STATE")
	}
	owner, err := embedded.ReadOwner(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Check(syscall.Kill(owner.PID, syscall.SIGTERM))
}

// damage FOLDER changes a byte in the middle of a file below a folder of the state. The file must be the newest
// manifest or be named by that manifest. If there are several such files, damage chooses the newest one.
func damage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: damage FOLDER")
	}
	newest := func(folder string, among func(name string) bool) (newest string) {
		ts.Check(filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
			if name := filepath.Base(path); err == nil && entry.Type().IsRegular() && name >= filepath.Base(newest) && among(name) {
				newest = path
			}
			return err
		}))
		return newest
	}
	manifest := newest(ts.MkAbs(".servo/manifests"), func(string) bool { return true })
	named, err := os.ReadFile(manifest)
	ts.Check(err)
	path := newest(ts.MkAbs(args[0]), func(name string) bool {
		return name == filepath.Base(manifest) || bytes.Contains(named, []byte(name))
	})
	data, err := os.ReadFile(path)
	ts.Check(err)
	data[len(data)/2] ^= 0xff
	ts.Check(os.WriteFile(path, data, 0o644))
}
