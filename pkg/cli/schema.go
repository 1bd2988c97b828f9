package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/project"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of project files, for editors",
		Long: "Print the JSON Schema of servo.yaml, asset files, schedules and test files. Editors complete and check YAML files whose first line is\n" +
			"  # yaml-language-server: $schema=" + project.SchemaFile + "#/definitions/project   in servo.yaml\n" +
			"  # yaml-language-server: $schema=../../" + project.SchemaFile + "#/definitions/assets   in assets/NAMESPACE/NAME.yaml\n" +
			"  # yaml-language-server: $schema=../" + project.SchemaFile + "#/definitions/schedules    in schedules/NAME.yaml\n" +
			"  # yaml-language-server: $schema=../" + project.SchemaFile + "#/definitions/tests        in tests/NAME.yaml\n" +
			"servo init writes the schema and these lines.",
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			if _, err := a.Stdout.Write(project.Schema()); err != nil {
				return fmt.Errorf("print schema: %w", err)
			}
			return nil
		},
	}
}

// noteSchema prints a note if the project's schema file belongs to another version of Servo.
func (a *app) noteSchema(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, project.SchemaFile)) //nolint:gosec // a file of the user's project
	if err == nil && !project.IsSchema(text) {
		a.note("%s is from another version of servo: replace it with `servo schema >%s`", project.SchemaFile, project.SchemaFile)
	}
}
