package cli

import (
	"context"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/trace"
)

// TestReferenceListsCommandsAndFlags compares docs/reference/cli.md with the commands: each command
// has a section or a row with its flags, and no others.
func TestReferenceListsCommandsAndFlags(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/cli.md")
	require.NoError(t, err)
	sections := map[string]string{}
	for _, section := range strings.Split(string(page), "\n### ")[1:] {
		names, text, _ := strings.Cut(section, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		for name := range strings.SplitSeq(names, ", ") {
			sections[name] = text
		}
	}
	known := map[string]bool{"help": true}
	a := &app{Env: Env{Program: "servo"}}
	root := a.root()
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		known[f.Name] = true
		require.Contains(t, string(page), "`--"+f.Name)
	})
	var check func(c *cobra.Command, section string)
	check = func(c *cobra.Command, section string) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if parent := c.Parent(); parent == root {
			section = c.Name()
		}
		if !strings.Contains(sections[section], c.CommandPath()) {
			t.Errorf("the section %s lacks %s", section, c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			known[f.Name] = true
			if f.Name != "help" && !regexp.MustCompile("--"+f.Name+"[^a-z-]").MatchString(sections[section]) {
				t.Errorf("the section of %s lacks --%s", c.CommandPath(), f.Name)
			}
		})
		for _, child := range c.Commands() {
			check(child, section)
		}
	}
	for _, c := range root.Commands() {
		check(c, "")
	}
	for _, m := range regexp.MustCompile(`--([a-z][a-z-]+)`).FindAllStringSubmatch(string(page), -1) {
		if !known[m[1]] {
			t.Errorf("the page has the flag --%s, which no command has", m[1])
		}
	}
}

// TestTraceFlagsNeedAnExporter checks that a program shows the flags for traces only if it can send traces.
func TestTraceFlagsNeedAnExporter(t *testing.T) {
	for _, can := range []bool{false, true} {
		a := &app{Env: Env{Program: "servo"}}
		if can {
			a.OpenTraces = func(context.Context, trace.Options, *slog.Logger) (*trace.Tracer, error) { return nil, nil }
		}
		for _, name := range []string{"run", "retry", "dev", "worker"} {
			cmd, _, err := a.root().Find([]string{name})
			require.NoError(t, err)
			require.Equal(t, can, strings.Contains(cmd.UsageString(), "--trace"), name)
		}
	}
}
