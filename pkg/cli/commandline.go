package cli

import (
	"regexp"
	"slices"
	"strings"
)

// suggested matches the beginning of a command line in a text: the program and the name of a command.
var suggested = regexp.MustCompile("(?:^|[\\s`'\"(])servo( [a-z]+)\\b")

// anywhere contains the commands that read neither a project nor its state.
var anywhere = []string{"completion", "help", "init", "version", "worker"}

// completed returns a text in which each suggested command has the flags --dir, --env and --state of this invocation.
// Without them, the command would read another state. Values of environment variables need no flags.
func (a *app) completed(text string) string {
	type flag struct{ name, value string }
	var given []flag
	for _, f := range []struct{ name, value, usual string }{
		{"-C", a.dir, ""}, {"--env", a.environment, a.getenv("SERVO_ENV")}, {"--state", a.state, a.getenv("SERVO_STATE")},
	} {
		if f.value != f.usual {
			given = append(given, flag{f.name, quoted(f.value)})
		}
	}
	if len(given) == 0 || a.name() != "servo" {
		return text
	}
	var out strings.Builder
	done := 0
	found := suggested.FindAllStringSubmatchIndex(text, -1)
	for i, at := range found {
		start, end, rest := at[2], at[3], text[at[3]:]
		if i+1 < len(found) {
			rest = text[end:found[i+1][0]]
		}
		rest, _, _ = strings.Cut(rest, "\n")
		rest, _, _ = strings.Cut(rest, "`")
		if word := text[start+1 : end]; slices.Contains(anywhere, word) || !slices.Contains(a.commands, word) {
			continue
		}
		out.WriteString(text[done:start])
		for _, f := range given {
			if !slices.Contains(strings.Fields(rest), f.name) {
				out.WriteString(" " + f.name + " " + f.value)
			}
		}
		done = start
	}
	return out.String() + text[done:]
}
