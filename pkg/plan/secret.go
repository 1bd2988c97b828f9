package plan

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Providers of secrets: the part of a reference before the colon.
const (
	SecretFile = "file" // a file in the worker's folder of secrets
	SecretEnv  = "env"  // a variable of the worker's environment
	SecretGCP  = "gcp"  // Google Secret Manager
)

// MaxSecrets limits the secrets of a command. A worker fetches each of them for every attempt.
const MaxSecrets = 100

// Secret is a parsed reference to a secret. A plan holds only references; workers fetch the
// values.
type Secret struct {
	Provider string
	// Name is the provider's name of the secret. For Secret Manager it always includes a
	// version.
	Name string
}

// Patterns for names of environment variables, and for references to secrets. Both RE2 and ECMAScript accept these
// patterns. [ValidVariable] and [ParseSecret] also reject a few reserved names that match them.
const (
	VariablePattern = `^` + variable + `$`
	SecretPattern   = `^(file:` + secretFileName + `|env:` + variable + `|gcp:` + secretGCPName + `)$`

	variable       = `[A-Za-z_][A-Za-z0-9_]{0,127}`
	secretFileName = `[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}`
	secretGCPName  = `projects/[a-z0-9][a-z0-9.:-]{0,99}/secrets/[A-Za-z0-9_-]{1,255}(/versions/[A-Za-z0-9_-]{1,63})?`
)

var (
	variableName = regexp.MustCompile(VariablePattern)
	secretFile   = regexp.MustCompile(`^` + secretFileName + `$`)
	secretGCP    = regexp.MustCompile(`^` + secretGCPName + `$`)
)

// ParseSecret parses a reference: file:NAME, env:VARIABLE, or gcp:projects/P/secrets/S with an
// optional /versions/V. Its errors quote nothing that may be a secret itself.
func ParseSecret(reference string) (Secret, error) {
	provider, name, _ := strings.Cut(reference, ":")
	s := Secret{Provider: provider, Name: name}
	switch provider {
	case SecretFile:
		if !secretFile.MatchString(name) {
			return s, errors.New("file: expects a plain file name, without a folder")
		}
	case SecretEnv:
		if !variableName.MatchString(name) {
			return s, errors.New("env: expects the name of a variable")
		}
		if WorkersOwn(name) {
			return s, fmt.Errorf("the variable %s is reserved for the worker", name)
		}
		if name == "PATH" {
			return s, errors.New("PATH cannot be a secret: every command needs it, and commands do not inherit secret variables")
		}
	case SecretGCP:
		if !secretGCP.MatchString(name) {
			return s, errors.New("gcp: expects projects/PROJECT/secrets/SECRET, optionally with /versions/VERSION")
		}
		if !strings.Contains(name, "/versions/") {
			s.Name += "/versions/latest"
		}
	default:
		return s, errors.New("must be file:NAME, env:VARIABLE or gcp:projects/PROJECT/secrets/SECRET")
	}
	return s, nil
}

// secretVariables returns the names of the worker's environment variables that contain secrets of the assets, sorted.
func secretVariables(assets []Asset) []string {
	var names []string
	for i := range assets {
		names = append(names, assets[i].Work.SecretVariables()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// SecretVariables returns the names of the worker's environment variables that contain secrets of the asset, in any
// order.
func (w *Work) SecretVariables() []string {
	var names []string
	references := slices.Collect(maps.Values(w.Secrets))
	for i := range w.External {
		for _, s := range w.External[i].Secrets {
			references = slices.AppendSeq(references, maps.Values(s.References))
		}
	}
	for _, reference := range references {
		if s, err := ParseSecret(reference); err == nil && s.Provider == SecretEnv {
			names = append(names, s.Name)
		}
	}
	return names
}

// reservedPrefix is the prefix of variables that Servo sets or reads.
const reservedPrefix = "SERVO_"

// ValidVariable reports whether an asset may set an environment variable of that name.
func ValidVariable(name string) bool {
	return variableName.MatchString(name) && !strings.HasPrefix(name, reservedPrefix)
}

// WorkersOwn reports whether an environment variable is only for the worker: it contains a setting of Servo, or
// credentials for its trace collector. Commands must not inherit such a variable.
func WorkersOwn(name string) bool {
	switch name {
	case "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS":
		return true
	}
	return strings.HasPrefix(name, reservedPrefix)
}
