package engine

import (
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxChain limits the length of a chain of causes.
const maxChain = 50

// cause follows the upstreams of a task that ended without running.
func (x *explainer) cause(upstreams []Edge) []Cause {
	if x.task.State != state.TaskSkipped && x.task.State != state.TaskCancelled {
		return nil
	}
	var chain []Cause
	for len(chain) < maxChain {
		at := slices.IndexFunc(upstreams, func(e Edge) bool { return e.Resolution == state.ResolvedFailed })
		if at < 0 {
			at = slices.IndexFunc(upstreams, func(e Edge) bool {
				return e.Resolution == state.ResolvedSkipped || e.Resolution == state.ResolvedCancelled
			})
		}
		if at < 0 {
			break
		}
		up := x.s.Tasks.Get(state.Key2{A: x.task.RunID, B: upstreams[at].TaskKey})
		if up == nil {
			break
		}
		chain = append(chain, Cause{TaskKey: up.TaskKey, State: up.State, Error: problem(up.ErrorCode, up.ErrorMessage)})
		if up.State == state.TaskFailed {
			break
		}
		upstreams = x.upstreams(up.TaskKey)
	}
	return chain
}

// roots returns the failed tasks above a task that ended without running.
func (x *explainer) roots() []string {
	if x.task.State != state.TaskSkipped && x.task.State != state.TaskCancelled {
		return nil
	}
	above := map[string][]string{} // the upstream tasks that did not succeed
	x.s.Deps.Ascend(state.Key3{A: x.task.RunID}, func(d *state.Dep) bool {
		if d.RunID == x.task.RunID && d.Resolution != state.ResolvedSuccess {
			above[d.Downstream] = append(above[d.Downstream], d.Upstream)
		}
		return d.RunID == x.task.RunID
	})
	var failed []string
	seen := map[string]bool{}
	for queue := slices.Clone(above[x.task.TaskKey]); len(queue) > 0; queue = queue[1:] {
		up := x.s.Tasks.Get(state.Key2{A: x.task.RunID, B: queue[0]})
		if up == nil || seen[up.TaskKey] {
			continue
		}
		seen[up.TaskKey] = true
		if up.State == state.TaskFailed && up.Kind != event.KindGroup {
			failed = append(failed, up.TaskKey)
			continue
		}
		queue = append(queue, above[up.TaskKey]...)
	}
	slices.Sort(failed)
	return failed
}

// headProblem returns the cause of an error on one line.
func headProblem(code, message string) string { return FirstLine(problem(code, message)) }

// FirstLine returns the line of an error that says what is wrong, followed by "…" if there are more
// lines: the first one, or the exception of a Python traceback. A line that ends with a colon, such
// as "sh exited with status 3:", is joined with the next one.
func FirstLine(text string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	rest = strings.TrimSpace(rest)
	if strings.HasSuffix(first, ":") {
		next, more, _ := strings.Cut(rest, "\n")
		if exception := pythonException(rest); exception != "" {
			next, more = exception, rest
		}
		if first += " " + next; strings.HasPrefix(first, "Traceback ") {
			first = next
		}
		rest = strings.TrimSpace(more)
	}
	if rest != "" {
		first += " …"
	}
	return first
}

// pythonException returns the line of a Python traceback that names the exception, or "" if the text
// has no traceback. Above it are indented lines: files, with their code.
func pythonException(text string) string {
	exception, inside := "", false
	for line := range strings.SplitSeq(text, "\n") {
		code := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(code, `File "`) && strings.Contains(code, ", line "), strings.HasPrefix(code, "Traceback (most recent call last):"):
			inside = true
		case inside && code != "" && !strings.HasPrefix(line, " "):
			exception, inside = code, false
		}
	}
	return exception
}
