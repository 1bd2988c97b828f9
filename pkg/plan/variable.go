package plan

import (
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// InputVariable returns the name of the environment variable that contains the folder of an input of a command.
func InputVariable(input ids.AssetKey) string {
	return "SERVO_INPUT_" + VariableName(input.Namespace+"_"+input.Name)
}

// VariableName converts a text to a part of an environment variable's name.
func VariableName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, s)
}
