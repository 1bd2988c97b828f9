package project

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// These values determine how runs of an environment get their code.
const (
	// DeployAuto: a run first deploys the project's files, if they differ from the deployed release.
	DeployAuto = "auto"
	// DeployExplicit: a run executes the deployed release.
	DeployExplicit = "explicit"
)

// Environment holds the settings of an environment: the settings of the base with the changes of the environment.
type Environment struct {
	// Name is empty for the base.
	Name      string
	Workspace string
	// Store is a bucket (gs://BUCKET), or a folder relative to the project. Empty: the default folder.
	Store  string
	Deploy string // DeployAuto or DeployExplicit
	// Protected means that deployments must be confirmed.
	Protected bool
}

// maxEnvironments is the maximum number of environments of a project. The number is limited because every load of
// servo.yaml reads all environments.
const maxEnvironments = 50

// storePattern matches a bucket, or a folder below the project.
const storePattern = `^(gs://[a-z0-9][a-z0-9._-]{1,221}|\.?[A-Za-z0-9_-][A-Za-z0-9._-]*(/\.?[A-Za-z0-9_-][A-Za-z0-9._-]*)*)$`

var (
	validStore = regexp.MustCompile(storePattern)
	validName  = regexp.MustCompile(domainPattern)
)

var (
	storeField = other("store", shape{
		Type: "string", Pattern: storePattern, PatternHelp: "Write gs://BUCKET, or a folder of the project.",
		Description: "Where the state is: gs://BUCKET, or a folder of the project. --state overrides it. Default: `.servo`.",
		Examples:    []any{".servo-dev"},
	}, func(f yamlFile, n *yaml.Node, p *Project) { f.store(n, &p.Environment.Store) })
	deployField = choice("deploy", shape{
		Description: "auto: a run deploys the project's files first, if they differ from the deployed release. " +
			"explicit: a run executes the release that `servo deploy` deployed.",
		Default: DeployAuto,
	}, []string{DeployAuto, DeployExplicit}, func(p *Project) *string { return &p.Environment.Deploy })
	protectedField = other("protected", shape{
		Type: "boolean", Default: false,
		Description: "true: `servo deploy` and `servo rollback` need --yes, or a confirmation on the terminal.",
	}, func(f yamlFile, n *yaml.Node, p *Project) { f.boolean(n, "protected", &p.Environment.Protected) })
	environmentsField = field[Project]{name: "environments", shape: environmentsShape(), read: func(yamlFile, *yaml.Node, *Project) {}}
)

func environmentsShape() shape {
	each := environmentFields.shape(shape{Description: "The settings that replace those of the base."})
	return shape{
		Type: "object", PropertyNames: &shape{Pattern: domainPattern}, Additional: &each, MaxProperties: maxEnvironments,
		Description: "Environments, by name. The settings of an environment replace those of the base, which are all settings outside of `environments`. Mappings are merged. Lists are replaced. Variables must exist in the base, with the same type. " +
			"--env chooses one.",
		Examples: []any{map[string]any{"prod": map[string]any{"workspace": "prod", "deploy": "explicit", "protected": true, "pools": map[string]any{"warehouse": 8}}}},
	}
}

// environment returns the settings of the chosen environment: the base, changed by the settings of the environment.
// It also reads all other environments, to report their problems.
func (f yamlFile) environment(n *yaml.Node) *yaml.Node {
	base, declared := without(n, "environments")
	chosen := f.options.Environment
	if declared == nil || isNull(declared) {
		if chosen != "" {
			f.report(place{file: f.name}, "declare it under environments", "unknown environment %s", quoteShort(chosen))
		}
		return n // the caller reports that the field environments has no value
	}
	known, found := fields{}, map[string]*yaml.Node{}
	for i := 0; declared.Kind == yaml.MappingNode && i+1 < len(declared.Content); i += 2 {
		key := resolve(declared.Content[i])
		if !validName.MatchString(key.Value) {
			f.fail(key, "use 1 to 63 of a-z, 0-9 and -", "invalid environment name %s", quoteShort(key.Value))
		}
		known[key.Value] = func(n *yaml.Node) {
			if n.Kind != yaml.MappingNode {
				f.fail(n, "", "environment %s must be a mapping, got %s", key.Value, kindOf(n))
				return
			}
			found[key.Value] = n
		}
	}
	f.mapping(declared, "environments", known)
	if len(known) > maxEnvironments {
		f.fail(declared, "", "the project has %d environments; at most %d are allowed", len(known), maxEnvironments)
		return base
	}
	own := map[ids.Domain][]Environment{}
	plain := f.settingsOf("", base)
	plain.join(own)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		merged := merge(base, found[name])
		f.readEnvironment(name, found[name], merged, own)
		f.checkVars(name, found[name], plain.project.Vars)
		if name == chosen {
			base = merged
		}
	}
	f.project.Environment.Name = chosen
	if _, ok := found[chosen]; ok {
		f.project.Domain.Workspace = chosen
	} else if _, bad := known[chosen]; chosen != "" && !bad {
		f.fail(declared, didYouMean(plan.Suggest(chosen, slices.Sorted(maps.Keys(known)))), "unknown environment %s", quoteShort(chosen))
	}
	return base
}

// readEnvironment adds an environment to the project's list of environments, and reports its problems.
func (f yamlFile) readEnvironment(name string, own, merged *yaml.Node, others map[ids.Domain][]Environment) {
	for i := 0; i+1 < len(own.Content); i += 2 {
		if key := resolve(own.Content[i]); key.Value == "environments" || key.Value == "name" {
			f.fail(key, "remove it", "an environment cannot set %s", key.Value)
			return
		}
	}
	l := f.settingsOf(name, merged)
	f.published = f.published || l.places != nil
	f.problems = append(f.problems, l.problems...)
	if other, found := l.join(others); found {
		f.fail(own, "set workspace or store in one of them", "%s and %s have the same workspace %s and store, and one of them is protected or deploys explicitly: "+
			"a run in the other would replace its release", describe(name), describe(other), l.project.Domain.Workspace)
	}
	f.project.Environments = append(f.project.Environments, l.project.Environment)
}

// checkVars reports variables of an environment that the base does not declare, or declares with another type.
// Otherwise, a query that works in the environment could fail in the base, which lacks the variable, or compute there
// with a value of another type.
func (f yamlFile) checkVars(environment string, own *yaml.Node, base map[string]plan.Var) {
	at := fieldIndex(own.Content, "vars")
	if at < 0 {
		return
	}
	vars := resolve(own.Content[at+1])
	for i := 0; vars.Kind == yaml.MappingNode && i+1 < len(vars.Content); i += 2 {
		key, value := resolve(vars.Content[i]), resolve(vars.Content[i+1])
		was, known := base[key.Value]
		if !known {
			f.fail(key, cmp.Or(didYouMean(plan.Suggest(key.Value, slices.Sorted(maps.Keys(base)))), "declare it under vars of the base, with a default value"),
				"environment %s sets the variable %s, which the base does not declare", environment, quoteShort(key.Value))
			continue
		}
		if kind, _ := variableKind(value); kind != "" && kind != was.Type {
			f.fail(value, "write a value of the same type", "environment %s sets the variable %s to a value of type %s, but in the base it has the type %s",
				environment, key.Value, kind, was.Type)
		}
	}
}

func describe(environment string) string {
	if environment == "" {
		return "the base"
	}
	return "environment " + environment
}

// settingsOf reads the settings of an environment. The base has the name "".
func (f yamlFile) settingsOf(name string, merged *yaml.Node) *loader {
	l := newLoader(f.files, f.project.Root, f.options)
	if name != "" {
		l.project.Domain.Workspace = name
	}
	g := yamlFile{l, f.name}
	g.mapping(merged, "environment "+name, configFields.fields(g, &l.project))
	l.project.Environment.Name, l.project.Environment.Workspace = name, l.project.Domain.Workspace
	return l
}

// join adds the environment to the map others, which contains the environments of each domain. Two environments with
// the same domain and store share the deployed release, so if one of them restricts deployments, runs in the other one
// would circumvent the restriction. In this case, join returns the name of the earlier environment.
func (l *loader) join(others map[ids.Domain][]Environment) (name string, found bool) {
	e := l.project.Environment
	guarded := func(e *Environment) bool { return e.Protected || e.Deploy == DeployExplicit }
	for i := range others[l.project.Domain] {
		o := &others[l.project.Domain][i]
		if o.Store == e.Store && (guarded(o) || guarded(&e)) {
			name, found = o.Name, true
		}
	}
	others[l.project.Domain] = append(others[l.project.Domain], e)
	return name, found
}

// without copies a mapping, but omits the field with the given name. It also returns the value of this field, or nil if
// there is no such field.
func without(n *yaml.Node, name string) (rest, value *yaml.Node) {
	rest = &yaml.Node{Kind: n.Kind, Tag: n.Tag, Line: n.Line, Column: n.Column}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if resolve(n.Content[i]).Value == name && value == nil {
			value = resolve(n.Content[i+1])
			continue
		}
		rest.Content = append(rest.Content, n.Content[i], n.Content[i+1])
	}
	return rest, value
}

// merge returns a mapping with the fields of the mappings base and more. If both have the same field, it merges the two
// values if they are mappings; otherwise, the value in more wins.
func merge(base, more *yaml.Node) *yaml.Node {
	merged := &yaml.Node{Kind: yaml.MappingNode, Tag: base.Tag, Line: base.Line, Column: base.Column}
	merged.Content = slices.Clone(base.Content)
	own := len(merged.Content)
	for i := 0; i+1 < len(more.Content); i += 2 {
		key, value := more.Content[i], resolve(more.Content[i+1])
		at := fieldIndex(merged.Content[:own], resolve(key).Value)
		if at < 0 {
			merged.Content = append(merged.Content, key, value)
			continue
		}
		if was := resolve(merged.Content[at+1]); was.Kind == yaml.MappingNode && value.Kind == yaml.MappingNode {
			value = merge(was, value)
		}
		merged.Content[at], merged.Content[at+1] = key, value
	}
	return merged
}

// fieldIndex returns the index of a field's key in the content of a mapping, or -1.
func fieldIndex(content []*yaml.Node, name string) int {
	for i := 0; i+1 < len(content); i += 2 {
		if resolve(content[i]).Value == name {
			return i
		}
	}
	return -1
}

// withUser replaces $USER in the name of a workspace with the name of the user.
func (f yamlFile) withUser(s string) string {
	const user = "$USER"
	if !strings.Contains(s, user) {
		return s
	}
	name := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		default:
			return '-'
		}
	}, strings.ToLower(f.options.User)), "-")
	return strings.ReplaceAll(s, user, cmp.Or(name, "unknown"))
}

func (f yamlFile) store(n *yaml.Node, to *string) {
	s, ok := f.text(n, "store")
	switch {
	case !ok:
	case !validStore.MatchString(s):
		f.fail(n, "write gs://BUCKET, or a folder of the project", "invalid store %s", quoteShort(s))
	default:
		*to = s
	}
}

func (f yamlFile) boolean(n *yaml.Node, what string, to *bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		f.fail(n, "", "%s must be true or false, got %s", what, kindOf(n))
		return
	}
	*to = strings.EqualFold(n.Value, "true")
}
