package cli

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// Groups of commands, as the help shows them.
const (
	groupProject = "project"
	groupRuns    = "runs"
	groupData    = "data"
	groupServe   = "serve"
)

// root returns the servo command with all its commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   a.name(),
		Short: "Servo orchestrates data assets and records every run",
		Long: "A project declares assets and how to compute each of them from others. Servo plans runs,\n" +
			"executes their tasks, retries failures, and keeps its whole state in plain Parquet files.",
		Args:              a.noSuchCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: a.setup,
		SilenceUsage:      true,
		SilenceErrors:     true,
	}
	flags := root.PersistentFlags()
	flags.StringVarP(&a.dir, "dir", "C", "", "project folder (default: the nearest folder with a servo.yaml, at or above the working folder)")
	flags.StringVar(&a.environment, "env", a.getenv("SERVO_ENV"), "environment of servo.yaml (default: SERVO_ENV, else the base settings)")
	flags.StringVar(&a.state, "state", a.getenv("SERVO_STATE"), "state folder or gs://BUCKET (default: SERVO_STATE, else store of servo.yaml, else .servo)")
	flags.StringVar(&a.secrets, "secrets", a.getenv("SERVO_SECRETS"), "folder of secrets for commands and queries that this process executes")
	flags.StringVarP(&a.output, "output", "o", "table", "output format: table, json, yaml or csv")
	flags.StringVar(&a.logLevel, "log-level", "warn", "log level on standard error: debug, info, warn or error")
	root.SetFlagErrorFunc(a.flagError)
	root.AddGroup(
		&cobra.Group{ID: groupProject, Title: "Project:"},
		&cobra.Group{ID: groupRuns, Title: "Runs:"},
		&cobra.Group{ID: groupData, Title: "Inspect:"},
		&cobra.Group{ID: groupServe, Title: "Serve and maintain:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID(groupServe)
	root.SetCompletionCommandGroupID(groupServe)
	add(groupProject, a.initCommand(), a.validateCommand(), a.testCommand(), a.schemaCommand(), a.envCommand(), a.extensionCommand(), a.devCommand(), a.uiCommand(),
		a.planCommand(), a.deployCommand(), a.rollbackCommand(), a.deploymentsCommand(), a.diffCommand())
	add(groupRuns, a.runCommand(), a.checkCommand(), a.retryCommand(), a.cancelCommand(), a.runsCommand(), a.requestsCommand(), a.backfillCommand(), a.statusCommand(), a.tasksCommand(),
		a.logsCommand())
	add(groupData, a.assetsCommand(), a.partitionsCommand(), a.checksCommand(), a.quarantineCommand(), a.schedulesCommand(), a.scheduleCommand(), a.alertsCommand(), a.alertCommand(), a.deadlinesCommand(), a.explainCommand(), a.queryCommand(), a.exportCommand())
	add(groupServe, a.workerCommand(), a.limitsCommand(), a.adminCommand(), a.versionCommand())
	a.strict(root)
	a.completions(root)
	for _, c := range root.Commands() {
		a.commands = append(a.commands, c.Name())
	}
	return root
}

// strict changes the commands that cobra adds, so that they reject unknown arguments like all other commands.
func (a *app) strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				of, rest, err := root.Find(args)
				if err != nil || of.HasSubCommands() {
					return a.noSuchCommand(of, rest)
				}
				return nil
			}
		case "completion":
			c.Args, c.RunE = a.noSuchCommand, func(c *cobra.Command, _ []string) error { return c.Help() }
			for _, shell := range c.Commands() {
				shell.Args = takes()
			}
		}
	}
}

// name returns the name of the program as the user has called it. It is not derived from Program, because Program may
// be the target of a symbolic link that the user has called.
func (a *app) name() string {
	if name := filepath.Base(a.Name); strings.HasPrefix(name, "servo-") {
		return name
	}
	return "servo"
}

// noSuchCommand rejects arguments that are not commands.
func (a *app) noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if meant := meantCommand(cmd, args[0]); meant != "" {
		return usagef("unknown command %q; did you mean %s?", args[0], meant)
	}
	return usagef("unknown command %q; list the commands with `%s --help`", args[0], cmd.CommandPath())
}

// meantCommand returns the subcommands that a wrong name may mean, for a message. It returns "" if there are none.
func meantCommand(cmd *cobra.Command, name string) string {
	var known, nested []string
	for _, c := range cmd.Commands() {
		if !c.IsAvailableCommand() {
			continue
		}
		if slices.Contains(c.SuggestFor, name) {
			return "`" + c.CommandPath() + "`"
		}
		known = append(known, c.Name())
		if sub, _, err := c.Find([]string{name}); err == nil && sub != c {
			nested = append(nested, "`"+sub.CommandPath()+"`")
		}
	}
	if len(nested) > 0 {
		return strings.Join(nested, " or ")
	}
	if near := plan.Suggest(name, known); near != "" {
		return "`" + cmd.CommandPath() + " " + near + "`"
	}
	return ""
}

// flagError describes an error of flags. If the flag follows a misspelt command, the error names the command. A command
// such as `servo partitions ASSET` has subcommands and also takes arguments of its own. Its first argument counts as a
// misspelt subcommand only if it resembles one.
func (a *app) flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		if meantCommand(cmd, args[0]) != "" || cmd.ValidateArgs(args) != nil {
			return a.noSuchCommand(cmd, args)
		}
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := plan.Suggest(unknown.GetSpecifiedName(), known); near != "" {
			return usagef("%w; did you mean --%s?", err, near)
		}
	}
	return usagef("%w; see `%s --help`", err, cmd.CommandPath())
}

// takes returns a check of the number of arguments. Names are written as in the field Use of a command: a name in
// brackets is optional, and "…" accepts any number of arguments.
func takes(names ...string) cobra.PositionalArgs {
	var needed []string
	most := len(names)
	for _, name := range names {
		if !strings.HasPrefix(name, "[") {
			needed = append(needed, name)
		}
		if strings.Contains(name, "…") {
			most = -1
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(needed):
			return usagef("missing argument %s; usage: %s", needed[len(args)], cmd.UseLine())
		case most >= 0 && len(args) > most:
			return usagef("unexpected argument %q; usage: %s", args[most], cmd.UseLine())
		}
		return nil
	}
}

// exclusive returns an error if both flags are set.
func exclusive(cmd *cobra.Command, a, b string) error {
	if cmd.Flags().Changed(a) && cmd.Flags().Changed(b) {
		return usagef("--%s and --%s cannot be combined: remove one", a, b)
	}
	return nil
}

// optional returns the only argument, or "".
func optional(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return ""
}
