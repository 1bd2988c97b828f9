package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/project"
)

func (a *app) envCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "List the environments of the project",
		Args:  a.noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:         "list",
		Annotations: writesRows,
		Short:       "List the environments of servo.yaml, and where each has its state",
		Args:        takes(),
		RunE: func(*cobra.Command, []string) error {
			p, err := a.settings()
			if err != nil {
				return err
			}
			if len(p.Environments) == 0 && a.table() {
				a.note("the project has no environments: declare them under environments in %s", project.ConfigFile)
			}
			return list(a, []column[project.Environment]{
				{Name: "environment", Value: func(e project.Environment) any { return e.Name }},
				{Name: "workspace", Value: func(e project.Environment) any { return e.Workspace }},
				{Name: "state", Value: func(e project.Environment) any { return a.stateOf(&project.Project{Root: p.Root, Environment: e}) }},
				{Name: "deploy", Value: func(e project.Environment) any { return e.Deploy }},
				{Name: "protected", Value: func(e project.Environment) any { return e.Protected }},
			}, p.Environments)
		},
	})
	return cmd
}

// completeEnvironments returns the names of the project's environments.
func (a *app) completeEnvironments() []string {
	dir, err := a.projectDir()
	if err != nil {
		return nil
	}
	o := a.projectOptions()
	o.Environment = ""
	p, err := project.LoadSettings(dir, o)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range p.Environments {
		names = append(names, e.Name)
	}
	return names
}

// override returns the project with the values of --var, and these values as canonical text.
func (a *app) override(p *project.Project, texts []string) (*project.Project, map[string]string, error) {
	values := map[string]string{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, nil, usagef("invalid variable %q: write name=value", text)
		}
		if _, twice := values[name]; twice {
			return nil, nil, usagef("--var %s is set twice: remove one", name)
		}
		values[name] = value
	}
	if len(values) == 0 {
		return p, nil, nil
	}
	with, err := p.Override(values)
	if err != nil {
		return nil, nil, &usageError{err}
	}
	canonical := map[string]string{}
	for name := range values {
		canonical[name] = with.Vars[name].Value
		if len(p.ReadBy(name)) == 0 {
			a.warn("no asset reads the variable %s", name)
		}
	}
	return with, canonical, nil
}
