package plan

import "github.com/servo-orchestration/servo/pkg/ids"

// CheckSelection returns an error if a request selects partitions that its assets cannot have at the time
// r.Calendar.Now. It reads no outputs, because they may change before the run is planned. A selection by status, such as
// missing, therefore selects every partition.
func CheckSelection(r Request) error {
	g, err := NewGraph(r.Assets)
	if err != nil {
		return err
	}
	order, err := g.Topological()
	if err != nil {
		return err
	}
	selections := make([]Selection, len(r.Partitions))
	for i, s := range r.Partitions {
		selections[i] = Selection{Clauses: s.Clauses, Everything: len(s.Clauses) == 0}
	}
	r.Partitions = selections
	b := builder{
		request: r, graph: g, most: MaxTasks, nodes: map[ids.AssetKey]*node{}, readers: g.Readers(r.Calendar), plan: &Plan{},
	}
	return b.selectAssets(order)
}
