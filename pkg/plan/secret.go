package plan

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Providers of secrets: the part of a reference before the colon.
const (
	SecretFile = "file" // a file in the worker's folder of secrets
	SecretEnv  = "env"  // a variable of the worker's own environment
	SecretGCP  = "gcp"  // Google Secret Manager
)

// MaxSecrets is how many secrets a command may have: each is asked for whenever it starts.
const MaxSecrets = 100

// Secret is a reference to a secret, taken apart. A plan has references only;
// workers find the values.
type Secret struct {
	Provider string
	// Name is what the provider calls it: of Secret Manager always with a version.
	Name string
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	secretFile   = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}$`)
	secretGCP    = regexp.MustCompile(`^projects/[a-z0-9][a-z0-9.:-]{0,99}/secrets/[A-Za-z0-9_-]{1,255}(/versions/[A-Za-z0-9_-]{1,63})?$`)
)

// ParseSecret takes a reference apart: file:NAME, env:VARIABLE, or
// gcp:projects/P/secrets/S with /versions/V or without.
func ParseSecret(reference string) (Secret, error) {
	provider, name, _ := strings.Cut(reference, ":")
	s := Secret{Provider: provider, Name: name}
	switch provider {
	case SecretFile:
		if !secretFile.MatchString(name) {
			return s, errors.New("file: takes the plain name of one file, without a folder")
		}
	case SecretEnv:
		if !variableName.MatchString(name) {
			return s, errors.New("env: takes the name of a variable")
		}
		if WorkersOwn(name) {
			return s, fmt.Errorf("the variable %s is the worker's own", name)
		}
		if name == "PATH" {
			return s, errors.New("every command needs PATH, and a variable that a secret is taken from is given to no other command")
		}
	case SecretGCP:
		if !secretGCP.MatchString(name) {
			return s, errors.New("gcp: takes projects/PROJECT/secrets/SECRET, with /versions/VERSION or without")
		}
		if !strings.Contains(name, "/versions/") {
			s.Name += "/versions/latest"
		}
	default:
		return s, errors.New("must be file:NAME, env:VARIABLE or gcp:projects/PROJECT/secrets/SECRET")
	}
	return s, nil
}

// secretVariables are the variables of workers that the secrets of assets are taken from,
// sorted.
func secretVariables(assets []Asset) []string {
	var names []string
	for i := range assets {
		names = append(names, assets[i].Work.SecretVariables()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// SecretVariables are the variables of workers that the asset's secrets are taken from,
// in any order.
func (w *Work) SecretVariables() []string {
	var names []string
	for _, reference := range w.Secrets {
		if s, err := ParseSecret(reference); err == nil && s.Provider == SecretEnv {
			names = append(names, s.Name)
		}
	}
	return names
}

// reservedPrefix begins the variables that Servo sets, and those that it reads.
const reservedPrefix = "SERVO_"

// ValidVariable reports whether a command may be given an environment variable of
// that name.
func ValidVariable(name string) bool {
	return variableName.MatchString(name) && !strings.HasPrefix(name, reservedPrefix)
}

// WorkersOwn reports whether an environment variable is the worker's alone, which
// commands do not inherit: how Servo is set up, and what its collector of traces wants
// to see.
func WorkersOwn(name string) bool {
	switch name {
	case "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS":
		return true
	}
	return strings.HasPrefix(name, reservedPrefix)
}
