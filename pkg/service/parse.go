package service

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"gopkg.in/yaml.v3"
)

// errHelp reports that help was requested and printed.
var errHelp = flag.ErrHelp

// parse reads the flags. The value of a flag that is not given comes from the environment (--compactor-url from
// SERVO_COMPACTOR_URL) or, if it is not set there, from the file that --config names. The error lists every problem,
// one per line.
func parse(k kind, args []string, getenv func(string) string, out io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet(k.Name, flag.ContinueOnError)
	f.SetOutput(out)
	var problems []error
	f.Usage = func() {
		f.VisitAll(func(fl *flag.Flag) { // show the types of the wrapped values
			if c, ok := fl.Value.(collected); ok {
				fl.Value = c.Value
			}
		})
		fmt.Fprintf(out, `%s

Usage: %s --store DIR|gs://BUCKET [flags]

Each flag can also be set in the environment (--store as SERVO_STORE) or in the file that --config names (as store).
A flag overrides the environment, and the environment overrides the file.

`, k.Usage, k.Name)
		f.PrintDefaults()
	}
	listen := k.Listen
	if port := getenv("PORT"); port != "" && getenv("K_SERVICE") != "" { // on Cloud Run
		listen = ":" + port
	}
	file := f.String(configFlag, "", "YAML file with the values of flags by name")
	f.StringVar(&c.Listen, "listen", listen, "address to serve on")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", "address to serve metrics on, without authentication, for example 127.0.0.1:9464 (default: not served)")
	f.StringVar(&c.Store, "store", "", "folder of objects, or gs://BUCKET (required)")
	f.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	c.callerFlags(f)
	c.Traces.flags(f)
	k.Flags(f, &c)
	f.VisitAll(func(fl *flag.Flag) {
		of, _ := flag.UnquoteUsage(fl)
		fl.Value = collected{Value: fl.Value, name: fl.Name, of: of, problems: &problems}
	})
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	if f.NArg() > 0 {
		problems = append(problems, fmt.Errorf("unexpected argument %q", f.Arg(0)))
	}
	given := map[string]bool{}
	f.Visit(func(fl *flag.Flag) { given[fl.Name] = true })
	f.VisitAll(func(fl *flag.Flag) {
		name := variable(fl.Name)
		if value := getenv(name); value != "" && !given[fl.Name] {
			given[fl.Name] = true
			problems = append(problems, setFlag(fl, name, value))
		}
	})
	if *file != "" {
		problems = append(problems, fromFile(f, *file, given)...)
	}
	c.applyDefaults()
	problems = append(problems, c.check()...)
	problems = append(problems, c.checkCallers()...)
	problems = append(problems, c.Traces.Check())
	problems = append(problems, k.Check(c)...)
	return c, errors.Join(problems...)
}

// collected records the problem of a flag's value instead of ending the parsing, so that all problems are reported at
// once.
type collected struct {
	flag.Value

	name, of string
	problems *[]error
}

// Set implements [flag.Value].
func (c collected) Set(value string) error {
	if c.Value.Set(value) != nil {
		*c.problems = append(*c.problems, fmt.Errorf("--%s %q: want a value of type %s", c.name, value, c.of))
	}
	return nil
}

// setFlag sets a flag to a value. The parameter source names the origin of the value in the error.
func setFlag(fl *flag.Flag, source, value string) error {
	c, ok := fl.Value.(collected)
	if ok && c.Value.Set(value) != nil {
		return fmt.Errorf("%s %q: want a value of type %s", source, value, c.of)
	}
	return nil
}

func variable(flagName string) string {
	return "SERVO_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// configFlag is the flag that names the settings file. The file itself must not set it.
const configFlag = "config"

// fromFile sets flags to their values in a file. It does not change the flags whose names are in given.
func fromFile(f *flag.FlagSet, path string, given map[string]bool) (problems []error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("--config: %w", err)}
	}
	var document yaml.Node
	file := yaml.NewDecoder(bytes.NewReader(data))
	if err := file.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return []error{fmt.Errorf("--config %s: %w", path, err)}
	}
	if err := file.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return []error{fmt.Errorf("--config %s: want a single document, without ---", path)}
	}
	if len(document.Content) == 0 { // an empty file, or only comments
		return nil
	}
	values := document.Content[0]
	if values.Kind != yaml.MappingNode {
		return []error{fmt.Errorf("--config %s: want lines like store: gs://my-bucket", path)}
	}
	seen := map[string]bool{}
	for i := 0; i < len(values.Content); i += 2 {
		key, node := values.Content[i], values.Content[i+1]
		if err := setFromFile(f, key.Value, node, given[key.Value], seen[key.Value]); err != nil {
			problems = append(problems, fmt.Errorf("--config %s, line %d: %w", path, key.Line, err))
		}
		seen[key.Value] = true
	}
	return problems
}

// setFromFile sets a flag from a file. It validates the value even if another source overrides it.
func setFromFile(f *flag.FlagSet, name string, node *yaml.Node, given, twice bool) error {
	fl := f.Lookup(name)
	if fl == nil || name == configFlag {
		return fmt.Errorf("%s has no setting %q; --help lists its settings", f.Name(), name)
	}
	if twice {
		return fmt.Errorf("%s occurs twice", name)
	}
	value, err := settingOf(node)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	before := fl.Value.String()
	if err := setFlag(fl, name, value); err != nil {
		return err
	}
	if given {
		return setFlag(fl, name, before)
	}
	return nil
}

// settingOf returns a value of the settings file in the form of a flag's value. The items of a list
// are joined by commas; an item of a mapping becomes NAME=VALUE.
func settingOf(node *yaml.Node) (string, error) {
	for _, item := range node.Content {
		if item.Kind != yaml.ScalarNode {
			return "", errors.New("want a string or a number, or a list or mapping of those")
		}
	}
	var parts []string
	switch node.Kind {
	case yaml.SequenceNode:
		for _, item := range node.Content {
			parts = append(parts, item.Value)
		}
	case yaml.MappingNode:
		for i := 0; i < len(node.Content); i += 2 {
			parts = append(parts, node.Content[i].Value+"="+node.Content[i+1].Value)
		}
	case yaml.AliasNode:
		return "", errors.New("aliases are not supported; write the value")
	default:
		if node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
			return "", errors.New("missing value")
		}
		return node.Value, nil
	}
	return strings.Join(parts, ","), nil
}
