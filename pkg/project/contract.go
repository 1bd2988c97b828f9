package project

import (
	"errors"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// columnTypesShape is the shape of a mapping from columns to types.
func columnTypesShape(values, about shape) shape {
	about.Type, about.Additional, about.MinProperties, about.MaxProperties = "object", values, 1, quality.MaxColumns
	return about
}

// columnTypes reads a mapping from columns to types.
func (f yamlFile) columnTypes(n *yaml.Node, what string, read func(name, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		f.fail(n, "write {column: TYPE}", "%s must be a mapping, got %s", what, kindOf(n))
		return
	}
	f.notEmpty(n, what, "add a column")
	if len(n.Content)/2 > quality.MaxColumns {
		f.fail(n, "", "%s may have at most %d columns", what, quality.MaxColumns)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := resolve(n.Content[i]), resolve(n.Content[i+1])
		lower := strings.ToLower(name.Value)
		switch {
		case name.Kind != yaml.ScalarNode || name.Value == "":
			f.fail(name, "", "a column must have a name")
		case seen[lower]:
			f.fail(name, "", "duplicate column %s: names are compared without case", quoteShort(name.Value))
		default:
			read(name, value)
		}
		seen[lower] = true
	}
}

// columnType reads the type of a column.
func (f yamlFile) columnType(n *yaml.Node, what string) (string, bool) {
	s, ok := f.text(n, what)
	if !ok {
		return "", false
	}
	err := quality.CheckType(s)
	var unknown *quality.UnknownTypeError
	switch {
	case errors.As(err, &unknown):
		f.fail(n, didYouMean(plan.Suggest(strings.ToUpper(unknown.Name), quality.TypeNames())), "unknown SQL type %s", quoteShort(unknown.Name))
		return "", false
	case err != nil:
		f.fail(n, "write a type such as VARCHAR or DECIMAL(12,2)", "invalid SQL type %s: %v", quoteShort(s), err)
		return "", false
	}
	return s, true
}

// contractFields are the fields of a column of `columns`.
var contractFields = table[contractColumn]{
	other("type", shape{Type: "string", Description: "The type in SQL."}, func(f yamlFile, n *yaml.Node, c *contractColumn) {
		c.kind, c.typed = f.columnType(n, "type")
	}),
	other("not_null", shape{Type: "boolean", Default: false, Description: "Whether NULL fails the check."}, func(f yamlFile, n *yaml.Node, c *contractColumn) {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(&c.notNull) != nil {
			f.fail(n, "", "not_null must be true or false, got %s", kindOf(n))
		}
	}),
}

// contractColumn holds the fields of a column of `columns` while its file is read.
type contractColumn struct {
	kind           string
	typed, notNull bool
}

// columns reads the field `columns`, which is the contract of an asset. It converts the contract to two checks: one
// of kind schema that forbids other columns, and one of kind not_null.
func (f yamlFile) columns(n *yaml.Node, a *declared) {
	types := check{Check: quality.Check{Name: quality.ContractCheck, Kind: quality.Schema}, at: f.place(n)}
	filled := check{Check: quality.Check{Name: quality.ContractNotNullCheck, Kind: quality.NotNull}, at: f.place(n)}
	types.Params.ForbidExtra = true
	f.columnTypes(n, "columns", func(name, value *yaml.Node) {
		c := contractColumn{}
		if value.Kind == yaml.MappingNode {
			f.mapping(value, "a column", contractFields.fields(f, &c))
			if !hasField(value, "type") {
				f.fail(value, "add type: VARCHAR", "the column %s has no type", quoteShort(name.Value))
			}
		} else {
			c.kind, c.typed = f.columnType(value, "the type of "+quoteShort(name.Value))
		}
		if !c.typed {
			return
		}
		types.Params.Types = append(types.Params.Types, quality.ColumnType{Name: name.Value, Type: c.kind})
		if c.notNull {
			filled.Columns, filled.columnsAt = append(filled.Columns, name.Value), append(filled.columnsAt, f.place(name))
		}
	})
	if len(types.Params.Types) == 0 {
		return
	}
	a.contract = []check{types}
	if len(filled.Columns) > 0 {
		a.contract = append(a.contract, filled)
	}
}
