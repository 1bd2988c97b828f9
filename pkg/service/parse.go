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

// errHelp says that the flags' help was asked for, and printed.
var errHelp = flag.ErrHelp

// parse reads flags; for those not given SERVO_… of the environment, where
// --compactor-url is SERVO_COMPACTOR_URL; and for those not there the file that --config
// names. The error names everything that is wrong, a line each.
func parse(k kind, args []string, getenv func(string) string, out io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet(k.Name, flag.ContinueOnError)
	f.SetOutput(out)
	var problems []error
	f.Usage = func() {
		f.VisitAll(func(fl *flag.Flag) { // its help asks of what type it is
			if c, ok := fl.Value.(collected); ok {
				fl.Value = c.Value
			}
		})
		fmt.Fprintf(out, `%s

Usage: %s --store DIR|gs://BUCKET [flags]

Each flag can be given in the environment, --store as SERVO_STORE, or in the file that --config names, as store. A flag
comes before the environment, and that before the file.

`, k.Usage, k.Name)
		f.PrintDefaults()
	}
	listen := k.Listen
	if port := getenv("PORT"); port != "" && getenv("K_SERVICE") != "" { // on Cloud Run
		listen = ":" + port
	}
	file := f.String(configFlag, "", "a YAML file with the values of flags, by their names")
	f.StringVar(&c.Listen, "listen", listen, "the address to serve on")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", "the address to serve metrics on, which asks nobody who calls, for example 127.0.0.1:9464 (default: they are not served)")
	f.StringVar(&c.Store, "store", "", "the folder of objects, or gs://BUCKET (required)")
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
			problems = append(problems, set(fl, name, value))
		}
	})
	if *file != "" {
		problems = append(problems, fromFile(f, *file, given)...)
	}
	c.settle()
	problems = append(problems, c.check()...)
	problems = append(problems, c.checkCallers()...)
	problems = append(problems, c.Traces.Check())
	problems = append(problems, k.Check(c)...)
	return c, errors.Join(problems...)
}

// collected is a flag's value that notes what is wrong, and goes on, for all to be said
// at once.
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

// set sets a flag to what somebody who is named says.
func set(fl *flag.Flag, who, value string) error {
	c, ok := fl.Value.(collected)
	if ok && c.Value.Set(value) != nil {
		return fmt.Errorf("%s %q: want a value of type %s", who, value, c.of)
	}
	return nil
}

func variable(flagName string) string {
	return "SERVO_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// configFlag names the file, and so is in none.
const configFlag = "config"

// fromFile sets the flags that are not given yet to what a file says.
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
		return []error{fmt.Errorf("--config %s: want one document, and no more behind ---", path)}
	}
	if len(document.Content) == 0 { // an empty file, or one of comments
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

// setFromFile sets a flag to what a file says. It is looked at also where something else
// comes before it: a file is right or it is not.
func setFromFile(f *flag.FlagSet, name string, node *yaml.Node, given, twice bool) error {
	fl := f.Lookup(name)
	if fl == nil || name == configFlag {
		return fmt.Errorf("%s has no setting %q; --help lists what it has", f.Name(), name)
	}
	if twice {
		return fmt.Errorf("%s is there twice", name)
	}
	value, err := settingOf(node)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	before := fl.Value.String()
	if err := set(fl, name, value); err != nil {
		return err
	}
	if given {
		return set(fl, name, before)
	}
	return nil
}

// settingOf is a flag's value as a file has it: a text or a number, a list of what the
// flag separates by commas, or a map of what it has as NAME=VALUE.
func settingOf(node *yaml.Node) (string, error) {
	for _, item := range node.Content {
		if item.Kind != yaml.ScalarNode {
			return "", errors.New("want a text or a number, a list of such, or a map of such")
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
		return "", errors.New("want the value itself, and not its alias")
	default:
		if node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
			return "", errors.New("there is no value")
		}
		return node.Value, nil
	}
	return strings.Join(parts, ","), nil
}
