package fold_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

var rewrite = flag.Bool("rewrite", false, "write what the fold decides into testdata")

// TestTranscripts plays the stories in testdata. An unindented line of a story is a comment or a group of events. The
// indented lines below a group show the decision of the fold: the outcome, and the rows that it added (+), changed
// and removed (-).
func TestTranscripts(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(names), 6)
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			told, err := os.ReadFile(name) //nolint:gosec // a file of this package
			require.NoError(t, err)
			happened := newStory(t).tell(string(told))
			if *rewrite {
				require.NoError(t, os.WriteFile(name, []byte(happened), 0o600))
				return
			}
			require.Equal(t, string(told), happened, "if the change is intended, run the test with -rewrite")
		})
	}
}

// story is a world in which a transcript is played. Its runs have names.
type story struct {
	*foldtest.World
	runs   map[string]string // id by name
	names  map[string]string // name by id
	groups []fold.Group      // in the order of folding
	held   *fold.Group       // a group that was written and is not folded yet
}

func newStory(t *testing.T) *story {
	return &story{World: foldtest.New(t), runs: map[string]string{}, names: map[string]string{}}
}

// tell folds the groups of a story, and returns its text with the decisions that the fold has made.
func (s *story) tell(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, " ") {
			continue // the line is an old decision
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for _, decided := range s.step(line) {
			out.WriteString("    " + decided + "\n")
		}
	}
	return out.String()
}

// step folds the group in a line and returns the outcome and the changes.
func (s *story) step(line string) []string {
	if offset, rest, _ := strings.Cut(line, " "); strings.HasPrefix(offset, "+") {
		d, err := time.ParseDuration(offset)
		if err != nil {
			panic(err)
		}
		s.Pass(d)
		line = rest
	}
	verb, rest, _ := strings.Cut(line, " ")
	switch {
	case verb == "rebuild":
		return s.rebuild(rest == "by name")
	case line == "again":
		g := s.groups[len(s.groups)-1]
		g.Entry = s.ID()
		return s.fold(g)
	case verb == "hold":
		g := s.group(rest)
		s.held = &g
		return []string{"written, and not listed yet"}
	case line == "release":
		return s.fold(*s.held)
	}
	return s.fold(s.group(line))
}

// group returns the events in a line as a group with its own entry.
func (s *story) group(line string) fold.Group {
	var payloads []event.Payload
	for part := range strings.SplitSeq(line, "; ") {
		payloads = append(payloads, s.event(part)...)
	}
	return s.Group(payloads...)
}

func (s *story) fold(g fold.Group) []string {
	before := s.State.Copy()
	s.groups = append(s.groups, g)
	var lines []string
	for i, result := range foldInOrder(s.State, s.groups, len(s.groups)-1) {
		if i > 0 {
			lines = append(lines, "a dead letter is folded again")
		}
		lines = append(lines, s.outcome(result))
	}
	if err := foldtest.Check(s.State); err != nil {
		panic(err)
	}
	return append(lines, s.changes(before, s.State)...)
}

// foldInOrder folds the group at an index. Like the compactor, it then folds the earlier dead letters that wait for a
// run that has appeared.
func foldInOrder(st *state.State, groups []fold.Group, at int) []fold.Result {
	results := []fold.Result{fold.Apply(st, groups[at])}
	for _, run := range results[0].Appeared {
		for _, g := range groups[:at] {
			if row := st.Entries.Get(state.Key2{A: g.Entry, B: g.ID}); row.Waits() && row.RunID == run {
				results = append(results, fold.Apply(st, g))
			}
		}
	}
	return results
}

func (s *story) outcome(r fold.Result) string {
	text := fmt.Sprintf("%s at %s", r.Row.Outcome, s.Now.Sub(foldtest.Epoch))
	if r.Row.Reason != "" {
		text += " " + r.Row.Reason
	}
	if r.Row.Detail != "" {
		text += ": " + r.Row.Detail
	}
	for id, name := range s.names {
		text = strings.ReplaceAll(text, id, name)
	}
	return text
}

// rebuild folds all groups into an empty state. It folds them in their recorded order, or in the order of the names
// of their entries, as if the record of the order were lost.
func (s *story) rebuild(byName bool) []string {
	groups, order := slices.Clone(s.groups), "in the recorded order"
	if byName {
		order = "in the order of their names"
		slices.SortStableFunc(groups, func(a, b fold.Group) int { return strings.Compare(a.Entry, b.Entry) })
	}
	rebuilt := state.New(foldtest.Domain)
	for i := range groups {
		foldInOrder(rebuilt, groups, i)
	}
	changes := s.changes(s.State, rebuilt)
	if len(changes) == 0 {
		changes = []string{"no differences"}
	}
	return append([]string{fmt.Sprintf("%d groups folded again %s:", len(groups), order)}, changes...)
}

// event returns the payloads of an event that a story describes in words.
func (s *story) event(text string) []event.Payload {
	verb, rest, _ := strings.Cut(text, " ")
	words := strings.Fields(rest)
	if payloads := s.scheduleEvent(verb, words); payloads != nil {
		return payloads
	}
	if payloads := s.alertEvent(verb, words); payloads != nil {
		return payloads
	}
	switch verb {
	case "run":
		return s.trigger(rest)
	case "cancel":
		return []event.Payload{&event.RunCancelRequested{RunID: s.runs[words[0]], Reason: "asked by a user", Force: slices.Contains(words, "force")}}
	case "limit":
		return []event.Payload{s.limit(words)}
	case "deploy":
		return []event.Payload{s.deploy(words)}
	case "keys":
		return []event.Payload{s.keys(words)}
	case "liveness":
		return []event.Payload{s.fire(s.Timer(event.TimerLiveness))}
	}
	return []event.Payload{s.taskEvent(verb, words)}
}

// limit reads "pool NAME SLOTS", "workspace SLOTS", or "none" instead of a number.
func (s *story) limit(words []string) event.Payload {
	p := &event.LimitSet{CommandID: s.ID(), Scope: words[0], Name: strings.Join(words[1:len(words)-1], "")}
	if slots := words[len(words)-1]; slots == "none" {
		p.Remove = true
	} else {
		p.Slots = number(slots)
	}
	return p
}

// deploy reads "NAME RELEASE OPTION…". Releases and codes are single digits.
func (s *story) deploy(words []string) event.Payload {
	p := &event.ProjectDeployed{DeployID: s.ID(), Release: hash(words[1]), Kind: event.DeployRelease}
	for option, value := range options(words[2:]) {
		switch option {
		case "expects":
			p.Expects = hash(value)
		case "force":
			p.Force = true
		case "schedules":
			p.Schedules = code(value)
		case "kind":
			p.Kind = value
		case "alerts":
			for rule := range strings.SplitSeq(value, ",") {
				p.Alerts = append(p.Alerts, alertRule(rule))
			}
		case "accept": // TASK:CODE:ACCEPTED
			accept := strings.Split(value, ":")
			p.Accept = append(p.Accept, event.AcceptedCode{
				Asset: "test/" + accept[0], Code: code(accept[1]), Accepts: []string{code(accept[2])},
			})
		default:
			panic("no such option of a deployment: " + option)
		}
	}
	s.names[p.DeployID] = words[0]
	s.names[p.Release] = words[1]
	return p
}

// keys reads "SET +KEY -KEY…".
func (s *story) keys(words []string) event.Payload {
	p := &event.PartitionsChanged{CommandID: s.ID(), KeySet: words[0]}
	for _, word := range words[1:] {
		if key, add := strings.CutPrefix(word, "+"); add {
			p.Add = append(p.Add, key)
		} else {
			p.Remove = append(p.Remove, strings.TrimPrefix(word, "-"))
		}
	}
	return p
}

func hash(digit string) string { return strings.Repeat(digit, 64) }

func code(digit string) string { return strings.Repeat(digit, 16) }

// taskEvent reads an event about the attempt RUN/TASK#N.
func (s *story) taskEvent(verb string, words []string) event.Payload {
	name, n, _ := strings.Cut(words[0], "#")
	run, task, _ := strings.Cut(name, "/")
	id, attempt := s.runs[run], number(n)
	dispatch := ids.DispatchID(id, task, attempt)
	generation := int32(0)
	if row := s.State.Outbox.Get(dispatch); row != nil {
		generation = row.Generation
	}
	switch verb {
	case "enqueued":
		return &event.DispatchEnqueued{DispatchID: dispatch, RunID: id, TaskKey: task, Attempt: attempt, Generation: generation}
	case "lost":
		return &event.DispatchRequested{
			DispatchID: dispatch, RunID: id, TaskKey: task, Attempt: attempt, Generation: generation + 1,
			AttemptID: ids.AttemptID(foldtest.Domain, id, task, attempt),
		}
	case "retry":
		for row := range s.State.Timers.All {
			if row.TimerType == event.TimerRetry && row.RunID == id && row.TaskKey == task && row.Attempt == attempt {
				return s.fire(row)
			}
		}
	case "started":
		return s.Started(id, task, attempt)
	case "heartbeat":
		return s.Beat(id, task, attempt)
	case "finished":
		p := s.Finished(id, task, attempt, event.Outcome(words[1]))
		switch p.Outcome {
		case event.Skipped:
			p.Error = nil
		case event.Cancelled:
			p.Error.Code = fold.CodeCancelled
		default:
		}
		if _, results, ok := strings.Cut(strings.Join(words, " "), " checks "); ok {
			p.CheckResults = checkResults(results)
			return p
		}
		if p.Error != nil && len(words) > 2 {
			p.Error.Code = words[2]
		}
		if p.Error != nil && slices.Contains(words, "final") {
			p.Error.Retryable = false
		}
		return p
	}
	panic("no such event: " + verb + " " + strings.Join(words, " "))
}

// checkResults reads "NAME:VERDICT …". The verdict is passed, failed, or failed and the severity that
// the worker reports.
func checkResults(text string) (results []event.CheckResult) {
	for word := range strings.FieldsSeq(text) {
		name, verdict, _ := strings.Cut(word, ":")
		verdict, severity, _ := strings.Cut(verdict, ":")
		r := event.CheckResult{Name: name, Phase: "POST", Severity: severity, Passed: verdict == "passed"}
		if !r.Passed {
			r.Failing, r.Message = 2, "2 of 9 rows"
		}
		results = append(results, r)
	}
	return results
}

// fire returns the event of the queue's call that fires a timer. The call is made when the timer is due, or now if that
// is later.
func (s *story) fire(timer *state.Timer) event.Payload {
	s.Pass(max(0, timer.FireAt.Time().Sub(s.Now)))
	return s.Fire(timer)
}

// trigger reads "NAME OPTION…: TASK<UPSTREAM+UPSTREAM OPTION…, TASK…".
func (s *story) trigger(text string) []event.Payload {
	head, list, _ := strings.Cut(text, ": ")
	words := strings.Fields(head)
	p := &event.RunTriggered{Fingerprint: "the request"}
	observed := int64(0)
	for option, value := range options(words[1:]) {
		switch option {
		case "parallelism":
			p.MaxParallelism = number(value)
		case "timeout":
			p.TimeoutSec = seconds(value)
		case "key":
			p.RunKey = value
		case "request":
			p.Fingerprint = value
		case "release":
			p.Release = hash(value)
		case "observed":
			observed = s.State.FoldSeq
		case "repeats":
			parent := s.State.Runs.Get(s.runs[value])
			p.Trigger = event.Trigger{Type: "retry", ParentRunID: parent.RunID}
			p.RootRun, p.Release, observed = parent.Root(), parent.Release, parent.InputsSeq
		default:
			panic("no such option of a run: " + option)
		}
	}
	var defs []event.TaskDef
	for task := range strings.SplitSeq(list, ", ") {
		defs = append(defs, definition(strings.Fields(task)))
	}
	payloads := s.Triggered(p, defs...)
	if plan, ok := payloads[1].(*event.PlanCreated); ok {
		plan.ObservedSeq = observed
	}
	s.runs[words[0]], s.names[p.RunID] = p.RunID, words[0]
	return payloads
}

func definition(words []string) event.TaskDef {
	key, upstreams, _ := strings.Cut(words[0], "<")
	def := foldtest.Task(key)
	if upstreams != "" {
		def.DependsOn = strings.Split(upstreams, "+")
	}
	for option, value := range options(words[1:]) {
		switch option {
		case "attempts":
			def.MaxAttempts, def.RetryInitialDelayMS, def.RetryMaxDelayMS = number(value), 10_000, 60_000
		case "pool":
			def.Pool = value
		case "timeout":
			def.TimeoutSec = seconds(value)
		case "rule":
			def.TriggerRule = value
		case "priority":
			def.Priority = number(value)
		case "code":
			def.Code = code(value)
		case "checks":
			def.Checks = strings.Split(value, "+")
		case "errors":
			def.ErrorChecks = strings.Split(value, "+")
		default:
			panic("no such option of a task: " + option)
		}
	}
	return def
}

func options(words []string) map[string]string {
	found := map[string]string{}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		found[name] = value
	}
	return found
}

func number(text string) int32 {
	var n int32
	if _, err := fmt.Sscan(text, &n); err != nil {
		panic(text + " is not a number")
	}
	return n
}

func seconds(text string) int32 {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return int32(d / time.Second)
}
