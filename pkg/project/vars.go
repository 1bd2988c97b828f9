package project

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
)

var varsField = other("vars", shape{
	Type: "object", PropertyNames: &shape{Pattern: plan.VarPattern}, MaxProperties: plan.MaxVars,
	Additional: &shape{Type: []string{"string", "integer", "boolean"}},
	Description: "Variables: strings, integers, booleans or dates. A query reads getvariable('var_NAME'). A command that lists NAME " +
		"under vars reads SERVO_VAR_NAME. At most 100, of at most 4 KiB each and 16 KiB together.",
	Examples: []any{map[string]any{"currency": "EUR", "days": 7}},
}, func(f yamlFile, n *yaml.Node, p *Project) { f.vars(n, p) })

// vars reads the project's variables.
func (f yamlFile) vars(n *yaml.Node, p *Project) {
	known, total := fields{}, 0
	p.Vars = map[string]plan.Var{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if !plan.ValidVar(key.Value) {
			f.fail(key, "use 1 to 63 of a-z, 0-9 and _, and begin with a letter", "invalid variable name %s", quoteShort(key.Value))
		}
		known[key.Value] = func(n *yaml.Node) {
			if v, ok := f.variable(key.Value, n); ok {
				p.Vars[key.Value] = v
				total += len(v.Value)
			}
		}
	}
	f.mapping(n, "vars", known)
	switch {
	case len(known) > plan.MaxVars:
		f.fail(n, "", "the project has %d variables; at most %d are allowed", len(known), plan.MaxVars)
	case total > plan.MaxVarTotalBytes:
		f.fail(n, "", "the variables have %d bytes together; at most %d are allowed", total, plan.MaxVarTotalBytes)
	}
}

// variable reads the value of a variable. The type of the YAML value determines the type of the variable. Problems
// never quote a reference to a secret.
func (f yamlFile) variable(name string, n *yaml.Node) (plan.Var, bool) {
	if !f.noLeadingZero(n, "variable "+name) {
		return plan.Var{}, false
	}
	kind, text := variableKind(n)
	if kind == "" {
		f.fail(n, "write other values in quotes", "variable %s must be a string, an integer of 64 bits, true, false or a date, got %s", name, kindOf(n))
		return plan.Var{}, false
	}
	if _, err := plan.ParseSecret(text); err == nil && kind == plan.VarString {
		f.fail(n, "list it under secrets of the command that needs it", "variable %s refers to a secret, and variables are stored in plain text", name)
		return plan.Var{}, false
	}
	v, err := plan.ParseVar(kind, text)
	if err != nil {
		f.fail(n, "", "variable %s %v", name, err)
		return plan.Var{}, false
	}
	return v, true
}

// declaredVars reads the names of the variables that a command reads.
func (f yamlFile) declaredVars(n *yaml.Node, w *plan.Work) {
	f.each(n, "vars", func(item *yaml.Node) {
		if name, ok := f.text(item, "an item of vars"); ok {
			f.useVar(f.place(item), name, w)
		}
	})
}

// queryVars checks and records the variables that a query reads.
func (l *loader) queryVars(a *declared, names []Variable) { l.readVars(a, names, a.queryPlace) }

// readVars checks and records the variables that a query or a check reads. The function at converts an offset in the
// SQL to a position.
func (l *loader) readVars(a *declared, names []Variable, at func(offset int) place) {
	for _, v := range names {
		name, ok := strings.CutPrefix(v.Name, plan.VarPrefix)
		switch {
		case ok:
			l.useVar(at(v.Offset), name, &a.Work)
		case v.Name == "":
			l.report(at(v.Offset), "write getvariable('NAME')", "the name of a variable must be a literal")
		case !l.unreadable[a.File]:
			l.ownVariable(a, v.Name, at(v.Offset))
		}
	}
}

// ownVariable reports a variable that the tasks of the asset do not set. DuckDB would not report it: the value of an
// unknown variable is NULL.
func (l *loader) ownVariable(a *declared, name string, at place) {
	known := []string{"servo_root"}
	if a.Partitions != nil {
		for i := range a.Partitions.Dimensions {
			d := &a.Partitions.Dimensions[i]
			name := d.Name
			if a.Work.Batch {
				name += "_keys"
			}
			if known = append(known, name); d.IsTime() {
				known = append(known, d.Name+"_start", d.Name+"_end")
			}
		}
	}
	if slices.Contains(known, name) {
		return
	}
	suggestion := didYouMean(plan.Suggest(name, known))
	switch {
	case suggestion != "":
	case a.Partitions == nil:
		suggestion = "the asset has no partitions; a variable of " + ConfigFile + " is " + plan.VarPrefix + "NAME"
	default:
		suggestion = "the asset has " + strings.Join(known[1:], ", ") + "; a variable of " + ConfigFile + " is " + plan.VarPrefix + "NAME"
	}
	l.report(at, suggestion, "unknown variable %s, which would be NULL", quoteShort(name))
}

// useVar records that an asset reads a variable.
func (l *loader) useVar(at place, name string, w *plan.Work) {
	v, ok := l.project.Vars[name]
	if !ok {
		suggestion := didYouMean(plan.Suggest(name, slices.Sorted(maps.Keys(l.project.Vars))))
		if suggestion == "" {
			suggestion = "declare it under vars in " + ConfigFile
		}
		l.report(at, suggestion, "unknown variable %s", quoteShort(name))
		return
	}
	if w.Vars == nil {
		w.Vars = map[string]plan.Var{}
	}
	w.Vars[name] = v
}

// Override replaces the values of variables in the project and its assets. The new values are texts, and must be
// valid for the types of the declared values. Override returns a changed copy of the project, and does not change p.
func (p *Project) Override(values map[string]string) (*Project, error) {
	with := *p
	with.Vars = maps.Clone(p.Vars)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		declared, ok := p.Vars[name]
		if !ok {
			errs = append(errs, unknownVar(name, p.Vars))
			continue
		}
		if _, err := plan.ParseSecret(values[name]); err == nil {
			errs = append(errs, fmt.Errorf("variable %s refers to a secret, and variables are stored in plain text: use secrets of an asset", name))
			continue
		}
		v, err := plan.ParseVar(declared.Type, values[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("variable %s %w", name, err))
			continue
		}
		with.Vars[name] = v
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	with.Assets = slices.Clone(p.Assets)
	changed := slices.Clone(p.Assets)
	for i := range changed {
		w := &changed[i].Work
		w.Vars = maps.Clone(w.Vars)
		for name := range w.Vars {
			w.Vars[name] = with.Vars[name]
		}
	}
	release.SetCodes(changed)
	for i := range changed {
		// Assets that read none of these variables keep the fingerprints that they have in p.
		if !maps.Equal(changed[i].Work.Vars, p.Assets[i].Work.Vars) {
			with.Assets[i] = changed[i]
		}
	}
	return &with, nil
}

// variableKind returns the type and the text of a variable's value. If the value has another type, kind is "".
func variableKind(n *yaml.Node) (kind, text string) {
	switch tag := n.ShortTag(); {
	case n.Kind != yaml.ScalarNode:
	case tag == "!!str":
		return plan.VarString, n.Value
	case tag == "!!int":
		var i int64
		if n.Decode(&i) == nil {
			return plan.VarInteger, fmt.Sprint(i)
		}
	case tag == "!!bool":
		return plan.VarBoolean, strings.ToLower(n.Value)
	case tag == "!!timestamp":
		return plan.VarDate, n.Value
	}
	return "", ""
}

func unknownVar(name string, known map[string]plan.Var) error {
	if near := plan.Suggest(name, slices.Sorted(maps.Keys(known))); near != "" {
		return fmt.Errorf("unknown variable %s: did you mean %s?", quoteShort(name), near)
	}
	if len(known) == 0 {
		return fmt.Errorf("unknown variable %s: the project has no vars in %s", quoteShort(name), ConfigFile)
	}
	return fmt.Errorf("unknown variable %s: the project has %s", quoteShort(name), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
}

// ReadBy returns the assets that read a variable.
func (p *Project) ReadBy(name string) (keys []ids.AssetKey) {
	for i := range p.Assets {
		if _, ok := p.Assets[i].Work.Vars[name]; ok {
			keys = append(keys, p.Assets[i].Key)
		}
	}
	return keys
}
