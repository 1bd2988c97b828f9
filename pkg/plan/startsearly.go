package plan

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// StartsEarly finds the assets that start before an upstream asset does: their first partition can never be
// materialized, because the upstream asset declares none of the partitions that it reads. The result describes this
// for each such asset.
func StartsEarly(g *Graph, c Calendar) map[ids.AssetKey]string {
	found, readers := map[ids.AssetKey]string{}, g.Readers(c)
	for i := range g.assets {
		a := &g.assets[i]
		if a.Partitions == nil || a.Broken != "" {
			continue
		}
		first, err := c.ExpectedAfter(a.Partitions, "", 1)
		if err != nil || len(first) == 0 {
			continue
		}
		for _, dep := range a.Deps {
			if up, ok := g.Asset(dep); ok && up.Partitions != nil && dep != a.Key && readsNothing(readers, a.Key, dep, first[0]) {
				found[a.Key] = fmt.Sprintf("asset %s can never have its first partition, because %s has only partitions %s: change the `start` of one of the two assets",
					a.Key, dep, rangeOf(up.Partitions))
			}
		}
	}
	return found
}

// readsNothing reports whether an upstream asset declares none of the partitions that a partition reads.
func readsNothing(readers *Readers, reader, upstream ids.AssetKey, key string) bool {
	image, err := readers.Reads(reader, upstream, key)
	return err == nil && image.OnlyUndeclared
}

// OtherZones describes the dependencies between periods of two time zones that are mapped by their dates. It ignores a
// dependency whose partitions cannot be mapped.
func OtherZones(g *Graph, c Calendar) (found []string) {
	readers := g.Readers(c)
	for i := range g.assets {
		a := &g.assets[i]
		for _, dep := range a.Deps {
			if reader, err := readers.Of(a.Key, dep); err == nil && !reader.ReadsAll() && reader.Warning != "" {
				found = append(found, zoneWarning(a.Key, dep, reader.Warning))
			}
		}
	}
	return found
}

// zoneWarning describes a dependency between periods of two time zones.
func zoneWarning(reader, upstream ids.AssetKey, warning string) string {
	return fmt.Sprintf("%s reads %s: %s", reader, upstream, warning)
}
