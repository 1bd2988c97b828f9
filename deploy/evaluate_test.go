package deploy_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// installation is the module evaluated with a user's arguments, except for the values that exist only after Terraform
// has created resources.
type installation struct {
	*module

	given map[string]string // arguments, as HCL
	known map[string]cty.Value
	// refused holds the error messages of the validations that failed.
	refused []string
}

// arguments are the required arguments of the module.
var arguments = map[string]string{
	"project": `"p"`, "region": `"europe-west1"`, "bucket": `"b"`,
	"images": `{ servo-compactor = "i/c", servo-dispatcher = "i/d", servo-sweeper = "i/s", servo-worker = "i/w" }`,
}

// installed evaluates the module with optional arguments added to the required ones.
func installed(t *testing.T, more map[string]string) *installation {
	t.Helper()
	p := &installation{module: load(t), given: map[string]string{}, known: map[string]cty.Value{
		"data.google_project.this":                         object(map[string]string{"number": "123456789012"}),
		"data.google_storage_project_service_account.this": object(map[string]string{"email_address": "storage@google.example"}),
	}}
	for _, all := range []map[string]string{arguments, more} {
		for name, value := range all {
			require.Contains(t, p.blocks, "var."+name)
			p.given[name] = value
		}
	}
	for name, block := range p.blocks {
		if !strings.HasPrefix(name, "var.") {
			continue
		}
		for _, b := range block.Body.Blocks {
			if !p.eval(b.Body.Attributes["condition"].Expr, nil).True() {
				p.refused = append(p.refused, p.eval(b.Body.Attributes["error_message"].Expr, nil).AsString())
			}
		}
	}
	return p
}

func object(attributes map[string]string) cty.Value {
	values := map[string]cty.Value{}
	for name, value := range attributes {
		values[name] = cty.StringVal(value)
	}
	return cty.ObjectVal(values)
}

// functions are the Terraform functions that the module uses.
var functions = map[string]function.Function{
	"can": tryfunc.CanFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc, "floor": stdlib.FloorFunc, "join": stdlib.JoinFunc, "jsonencode": stdlib.JSONEncodeFunc,
	"keys": stdlib.KeysFunc, "merge": stdlib.MergeFunc, "min": stdlib.MinFunc, "regex": stdlib.RegexFunc, "replace": stdlib.ReplaceFunc,
	"setproduct": stdlib.SetProductFunc, "setsubtract": stdlib.SetSubtractFunc, "setunion": stdlib.SetUnionFunc, "values": stdlib.ValuesFunc,
	"tonumber": stdlib.MakeToFunc(cty.Number), "tostring": stdlib.MakeToFunc(cty.String), "toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
	"alltrue": function.New(&function.Spec{
		Params: []function.Parameter{{Type: cty.List(cty.Bool)}}, Type: function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(!slices.ContainsFunc(args[0].AsValueSlice(), cty.Value.False)), nil
		},
	}),
	"endswith": function.New(&function.Spec{
		Params: []function.Parameter{{Type: cty.String}, {Type: cty.String}}, Type: function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(strings.HasSuffix(args[0].AsString(), args[1].AsString())), nil
		},
	}),
}

// eval returns the value of an expression. The expression may use iterators: each maps their names to their values.
func (p *installation) eval(e hclsyntax.Expression, each map[string]cty.Value) cty.Value {
	p.t.Helper()
	tree := map[string]any{}
	for _, traversal := range e.Variables() {
		name := nameOf(traversal)
		if _, iterator := each[traversal.RootName()]; iterator {
			continue
		}
		at := tree
		parts := strings.Split(name, ".")
		for _, part := range parts[:len(parts)-1] {
			inner, ok := at[part].(map[string]any)
			if !ok {
				inner = map[string]any{}
				at[part] = inner
			}
			at = inner
		}
		at[parts[len(parts)-1]] = p.resolve(name)
	}
	variables := map[string]cty.Value{}
	for name, value := range tree {
		variables[name] = ctyOf(value)
	}
	maps.Copy(variables, each)
	v, diagnostics := e.Value(&hcl.EvalContext{Variables: variables, Functions: functions})
	require.False(p.t, diagnostics.HasErrors(), "%s", diagnostics.Error())
	return v
}

func ctyOf(value any) cty.Value {
	inner, ok := value.(map[string]any)
	if !ok {
		return value.(cty.Value)
	}
	values := map[string]cty.Value{}
	for name, v := range inner {
		values[name] = ctyOf(v)
	}
	return cty.ObjectVal(values)
}

// resolve returns the value of a reference. The value of a resource has its name, its id and, for an account, its
// email.
func (p *installation) resolve(name string) cty.Value {
	p.t.Helper()
	if v, ok := p.known[name]; ok {
		return v
	}
	var v cty.Value
	switch {
	case strings.HasPrefix(name, "var."):
		v = p.variable(strings.TrimPrefix(name, "var."))
	case strings.HasPrefix(name, "local."):
		v = p.eval(p.locals[strings.TrimPrefix(name, "local.")], nil)
	default:
		require.Contains(p.t, p.blocks, name)
		made := map[string]cty.Value{}
		for key, each := range p.instances(name) {
			made[key] = p.made(name, each)
		}
		if v = cty.ObjectVal(made); p.blocks[name].Body.Attributes["for_each"] == nil {
			v = made[""]
		}
	}
	p.known[name] = v
	return v
}

func (p *installation) made(name string, each map[string]cty.Value) cty.Value {
	attributes := map[string]string{"name": name, "id": name}
	for attribute, names := range map[string][]string{"name": {"name"}, "account_id": {"name", "email"}} {
		if a := p.blocks[name].Body.Attributes[attribute]; a != nil {
			for _, as := range names {
				attributes[as] = p.eval(a.Expr, each).AsString()
			}
		}
	}
	return object(attributes)
}

// instances returns each.key and each.value of every instance of a resource. A resource without for_each has one
// instance, with the key "".
func (p *installation) instances(name string) map[string]map[string]cty.Value {
	p.t.Helper()
	require.Contains(p.t, p.blocks, name)
	forEach := p.blocks[name].Body.Attributes["for_each"]
	if forEach == nil {
		return map[string]map[string]cty.Value{"": nil}
	}
	instances := map[string]map[string]cty.Value{}
	for it := p.eval(forEach.Expr, nil).ElementIterator(); it.Next(); {
		key, value := it.Element()
		if key.Type() != cty.String { // the elements of a set are their own keys
			key = value
		}
		instances[key.AsString()] = map[string]cty.Value{"each": cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})}
	}
	return instances
}

// variable returns the argument for a variable, or the variable's default. Attributes that the argument omits have
// their own defaults.
func (p *installation) variable(name string) cty.Value {
	body := p.blocks["var."+name].Body
	kind, defaults, diagnostics := typeexpr.TypeConstraintWithDefaults(body.Attributes["type"].Expr)
	require.False(p.t, diagnostics.HasErrors(), diagnostics.Error())
	var e hclsyntax.Expression
	if text, ok := p.given[name]; ok {
		e, diagnostics = hclsyntax.ParseExpression([]byte(text), name, hcl.InitialPos)
		require.False(p.t, diagnostics.HasErrors(), diagnostics.Error())
	} else {
		require.Contains(p.t, body.Attributes, "default", name)
		e = body.Attributes["default"].Expr
	}
	v := p.value(e)
	if defaults != nil {
		v = defaults.Apply(v)
	}
	v, err := convert.Convert(v, kind)
	require.NoError(p.t, err, name)
	return v
}

// nested returns the blocks of a type within a block, including those of dynamic blocks.
func nested(body *hclsyntax.Body, kind string) []*hclsyntax.Body {
	var found []*hclsyntax.Body
	for _, b := range body.Blocks {
		switch {
		case b.Type == kind:
			found = append(found, b.Body)
		case b.Type == "dynamic" && b.Labels[0] == kind:
			found = append(found, nested(b.Body, "content")...)
		}
	}
	return found
}

// within returns the first block at a path.
func (p *installation) within(body *hclsyntax.Body, path ...string) *hclsyntax.Body {
	p.t.Helper()
	for _, kind := range path {
		blocks := nested(body, kind)
		require.NotEmpty(p.t, blocks, kind)
		body = blocks[0]
	}
	return body
}

// attribute returns the value of an attribute for one instance of a resource.
func (p *installation) attribute(body *hclsyntax.Body, each map[string]cty.Value, name string) cty.Value {
	p.t.Helper()
	require.Contains(p.t, body.Attributes, name)
	return p.eval(body.Attributes[name].Expr, each)
}
