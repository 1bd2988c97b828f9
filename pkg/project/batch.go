package project

import (
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/event"
)

// batchAll is a value of the field `batch`: as many partitions as a task can have.
const batchAll = "all"

// batchField is the field for the number of partitions that a task materializes.
var batchField = other("batch", shape{
	AnyOf: []*shape{
		{Type: "integer", Minimum: new(int64(1)), Maximum: new(int64(event.MaxBatch))},
		{Const: batchAll},
		new(batchFields.shape(shape{Description: "The number of partitions, and whether the author states that each row depends on its own partition only."})),
	},
	Default: 1, Examples: []any{1, 50, batchAll},
	Description: "How many partitions of a run one task materializes, at most 1,000. all: as many as possible. 1: no batch, as without the field. With more than 1, a query " +
		"reads lists, such as getvariable('date_keys'), and returns the dimensions of its partitions as columns; a command writes a folder for each partition. If one partition fails, the task fails.",
}, yamlFile.batch)

// batchFields are the fields of a batch that is a mapping.
var batchFields = table[declared]{
	other("size", shape{
		AnyOf:   []*shape{{Type: "integer", Minimum: new(int64(1)), Maximum: new(int64(event.MaxBatch))}, {Const: batchAll}},
		Default: 1, Examples: []any{50, batchAll},
		Description: "How many partitions of a run one task materializes.",
	}, yamlFile.batchSize),
	other("independent", shape{
		Type: "boolean", Default: false,
		Description: "States that each row depends only on the inputs of its own partition. `servo validate` then accepts the query even if it cannot prove this.",
	}, func(f yamlFile, n *yaml.Node, a *declared) { f.boolean(n, "independent", &a.independent) }),
}

// batch reads the field `batch`, which sets the number of partitions that a task materializes.
func (f yamlFile) batch(n *yaml.Node, a *declared) {
	a.batchAt = f.place(n)
	if resolve(n).Kind == yaml.MappingNode {
		f.mapping(resolve(n), "batch", batchFields.fields(f, a))
	} else {
		f.batchSize(n, a)
	}
	a.Work.Batch = a.Batch > 0
}

// batchSize reads the maximum number of partitions of a batch.
func (f yamlFile) batchSize(n *yaml.Node, a *declared) {
	if n = resolve(n); n.Kind == yaml.ScalarNode && n.Value == batchAll {
		a.Batch = event.MaxBatch
	} else if i, ok := f.integer(n, "batch", 1, event.MaxBatch); ok {
		a.Batch = int(i)
	}
	if a.Batch == 1 {
		a.Batch = 0
	}
}

// refuseSpan reports a check that reads the span of a batch. A check is executed for one partition at a time, so the
// span would be wrong.
func (l *loader) refuseSpan(a *declared, c *check, names []Variable) {
	at := a.Partitions.Time()
	if !a.Work.Batch || at == nil {
		return
	}
	for _, v := range names {
		if suffix, ok := strings.CutPrefix(v.Name, at.Name); ok && (suffix == "_start" || suffix == "_end") {
			l.report(c.place(v.Offset), "compare with getvariable('"+at.Name+"_keys')[1], which is the partition that is checked",
				"check %s reads %s, which only the query of an asset with `batch` can read", c.Name, v.Name)
		}
	}
}
