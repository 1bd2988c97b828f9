package plan

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Incomplete is an upstream asset from which a reader gets fewer partitions than expected.
type Incomplete struct {
	Asset    string `json:"asset"`
	Upstream string `json:"upstream"`
	Expected int    `json:"expected"`
	Read     int    `json:"read"` // how many of the expected partitions are read
	// Missing are the expected partitions that are not read, as ranges.
	Missing string `json:"missing"`
}

// String formats i for people: "reads 4 of 10 partitions of raw/events; missing
// 2024-01-05..2024-01-10".
func (i Incomplete) String() string {
	return fmt.Sprintf("%s reads %d of %d partitions of %s; missing %s", i.Asset, i.Read, i.Expected, i.Upstream, i.Missing)
}

// CodeMissingInput is the error code of a run that is rejected because it would read too few partitions.
const CodeMissingInput = "MISSING_INPUT"

// noteMissing records the upstream partitions that the reader should read, but that neither an earlier run nor this run
// materializes. If the reader requires complete inputs, the run is rejected, unless the request allows incomplete
// inputs.
func (b *builder) noteMissing(reader, upstream *Asset, expected, read int, all, missing []string) {
	if len(missing) == 0 {
		return
	}
	in := Incomplete{
		Asset: reader.Key.String(), Upstream: upstream.Key.String(), Expected: expected, Read: read,
		Missing: upstream.Partitions.Describe(all, missing),
	}
	if !b.request.AllowIncomplete && reader.RequiresComplete(upstream.Key) {
		form := b.request.Form
		options := form.Name(OptionUpstream) + " and " + form.Name(OptionPartitions)
		if reader.Key == upstream.Key {
			options = form.Name(OptionPartitions) // the missing partitions are those of the asset itself
		}
		b.errs = append(b.errs, fmt.Errorf("plan %s: %s: reads %d of %d partitions of %s; missing %s: "+
			"run them, too: select them with %s, or accept the gap with %s",
			in.Asset, CodeMissingInput, in.Read, in.Expected, in.Upstream, in.Missing, options, form.Name(OptionAllowIncomplete)))
		return
	}
	b.plan.Incomplete = append(b.plan.Incomplete, in)
}

// noteIncomplete records which upstream partitions are missing for an asset that reads all of them. A partition is
// missing if it is expected, and neither an earlier run nor this run materializes it.
func (b *builder) noteIncomplete(reader ids.AssetKey, upstream *Asset, items []Input) {
	if upstream.Partitions == nil {
		return
	}
	expected, ok := b.expected[upstream.Key]
	if !ok {
		var err error
		if expected, err = b.request.Calendar.Expected(upstream.Partitions, space.MaxListed); err != nil {
			expected = nil // there are more partitions than can be listed
			if asset, _ := b.graph.Asset(reader); asset.RequiresComplete(upstream.Key) && !b.request.AllowIncomplete {
				b.errs = append(b.errs, fmt.Errorf("plan %s: it requires all partitions of %s: %w", reader, upstream.Key, err))
			}
		}
		b.expected[upstream.Key] = expected
	}
	has := make(map[string]bool, len(items))
	for _, in := range items {
		has[in.PartitionKey] = true
	}
	var missing []string
	for _, key := range expected {
		if !has[key] {
			missing = append(missing, key)
		}
	}
	asset, _ := b.graph.Asset(reader)
	b.noteMissing(asset, upstream, len(expected), len(expected)-len(missing), expected, missing)
}

// gathered lists the partitions of one upstream asset that the tasks of an asset read through a mapping.
type gathered struct {
	// keys are the expected partitions, in the order in which the tasks read them. missing are those that do not exist.
	keys, missing []string
	seen          map[string]bool
	// unread are the partitions of the reader that would read nothing for another reason than those in the field
	// undeclared.
	unread []string
	// undeclared are those partitions of the reader that would read nothing, because the upstream asset does not declare
	// any partition that the mapping yields for them.
	undeclared []string
}

// expect records that a task should read a partition, and whether the partition exists.
func (g *gathered) expect(key string, exists bool) {
	if g.seen == nil {
		g.seen = map[string]bool{}
	}
	if g.seen[key] {
		return
	}
	g.seen[key] = true
	g.keys = append(g.keys, key)
	if !exists {
		g.missing = append(g.missing, key)
	}
}

// finish reports the partitions of a dependency that the tasks of a node should read, but that do not exist.
func (b *builder) finish(n *node, dep ids.AssetKey, g *gathered) {
	upstream, _ := b.graph.Asset(dep)
	switch {
	case len(g.undeclared) > 0:
		b.errs = append(b.errs, fmt.Errorf("asset %s reads no partition of %s for %s, because %s has %s: select fewer partitions",
			n.asset.Key, dep, n.asset.Partitions.Describe(n.keys, g.undeclared), dep, rangeOf(upstream.Partitions)))
	case len(g.unread) > 0 && len(g.missing) == 0:
		reader := n.asset.Key.String()
		if n.asset.Partitions != nil {
			reader += " for " + n.asset.Partitions.Describe(n.keys, g.unread)
		}
		b.errs = append(b.errs, fmt.Errorf("asset %s needs partitions of %s, and none was materialized: %s", reader, dep, b.upstreamAdvice()))
	case len(g.unread) > 0:
		b.errs = append(b.errs, fmt.Errorf("asset %s needs partitions of %s that have never been materialized: %s: %s",
			n.asset.Key, dep, upstream.Partitions.Describe(g.keys, g.missing), b.upstreamAdvice()))
	default:
		b.noteMissing(n.asset, upstream, len(g.keys), len(g.keys)-len(g.missing), g.keys, g.missing)
	}
}
