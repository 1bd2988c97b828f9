package project

import (
	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// variablesShape returns the shape of a mapping from environment variables to values.
func variablesShape(most int, value, about shape) shape {
	about.Type, about.Additional, about.MaxProperties = "object", value, most
	about.PropertyNames = &shape{Pattern: plan.VariablePattern, Not: &shape{Pattern: "^SERVO_"}}
	return about
}

// secretShape returns the shape of a reference to a secret.
func secretShape() shape {
	return shape{
		Type: "string", Pattern: plan.SecretPattern,
		PatternHelp: "Write a reference to the secret, never its value: file:NAME, env:VARIABLE or gcp:projects/PROJECT/secrets/SECRET.",
		Not:         &shape{Pattern: "^env:(SERVO_.*|PATH|OTEL_EXPORTER_OTLP_(TRACES_)?HEADERS)$"},
	}
}

// env reads environment variables. Numbers and booleans become strings.
func (f yamlFile) env(n *yaml.Node) map[string]string {
	env := map[string]string{}
	f.variables(n, "env", maxList, func(name string, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode {
			f.fail(n, "", "an environment variable must be a string, got %s", kindOf(n))
			return
		}
		env[name] = n.Value
	})
	return env
}

// secrets reads environment variables whose values workers fetch. Problems never quote an invalid reference, because
// it may itself be a secret.
func (f yamlFile) secrets(n *yaml.Node) map[string]string {
	secrets := map[string]string{}
	f.variables(n, "secrets", plan.MaxSecrets, func(name string, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode {
			f.fail(n, "", "a reference to a secret must be a string, got %s", kindOf(n))
			return
		}
		if _, err := plan.ParseSecret(n.Value); err != nil {
			f.fail(n, "write a reference to the secret, never its value", "%s is not a secret reference: %v", name, err)
			return
		}
		secrets[name] = n.Value
	})
	return secrets
}

// variables reads a mapping whose keys are names of environment variables.
func (f yamlFile) variables(n *yaml.Node, what string, most int, read func(name string, n *yaml.Node)) {
	known := fields{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if !plan.ValidVariable(key.Value) {
			f.fail(key, "use letters, digits and _; SERVO_ is reserved", "%s cannot be an environment variable", quoteShort(key.Value))
		}
		known[key.Value] = func(n *yaml.Node) { read(key.Value, n) }
	}
	f.mapping(n, what, known)
	if len(known) > most {
		f.fail(n, "", "%s has %d variables; at most %d are allowed", what, len(known), most)
	}
}

// checkTwice reports variables that are in both env and secrets.
func (f yamlFile) checkTwice(asset *yaml.Node, w *plan.Work) {
	for i := 0; i+1 < len(asset.Content); i += 2 {
		secrets := resolve(asset.Content[i+1])
		if resolve(asset.Content[i]).Value != "secrets" || secrets.Kind != yaml.MappingNode {
			continue
		}
		for j := 0; j+1 < len(secrets.Content); j += 2 {
			key := resolve(secrets.Content[j])
			if _, ok := w.Env[key.Value]; ok {
				f.fail(key, "remove one of them", "%s is in both env and secrets", quoteShort(key.Value))
			}
		}
	}
}
