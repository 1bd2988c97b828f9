package staleness

import (
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Runnable returns those of the given partitions that can be materialized together, sorted by key for each asset. It
// omits partitions with incomplete inputs, as [Evaluation.ToRun] does. It also omits a partition that reads one of the
// partitions in notMade. Those partitions should have been materialized earlier, but were not: if they have visible
// outputs, the outputs are out of date.
func (e *Evaluation) Runnable(partitions, notMade map[ids.AssetKey][]string) (map[ids.AssetKey][]string, error) {
	order, err := e.graph.Topological()
	if err != nil {
		return nil, err
	}
	runnable := make(map[ids.AssetKey][]string, len(partitions))
	refused := map[ids.AssetKey]map[string]bool{}
	refuse := func(asset ids.AssetKey, partition string) {
		if refused[asset] == nil {
			refused[asset] = map[string]bool{}
		}
		refused[asset][partition] = true
	}
	for asset, keys := range notMade {
		for _, key := range keys {
			refuse(asset, key)
		}
	}
	for _, key := range order {
		if len(partitions[key]) == 0 {
			continue
		}
		a, _ := e.graph.Asset(key)
		for _, dep := range a.Deps { // the assets that a reads, which may include a itself
			if _, err := e.load(dep); err != nil {
				return nil, err
			}
		}
		keys := slices.Sorted(slices.Values(partitions[key]))
		if a.ReadsItself() {
			keys = a.Partitions.ByTime(keys)
		}
		for _, partition := range keys {
			_, complete, err := e.inputs(a, partition, runnable)
			reads := false
			if err == nil {
				reads, err = e.readsAny(key, a.Deps, partition, refused)
			}
			switch {
			case err != nil:
				return nil, err
			case !complete || reads:
				refuse(key, partition)
			default:
				at, _ := slices.BinarySearch(runnable[key], partition) // the end, unless the asset reads itself
				runnable[key] = slices.Insert(runnable[key], at, partition)
			}
		}
	}
	return runnable, nil
}

// readsAny reports whether a partition reads one of the given partitions.
func (e *Evaluation) readsAny(reader ids.AssetKey, deps []ids.AssetKey, partition string, of map[ids.AssetKey]map[string]bool) (bool, error) {
	for _, dep := range deps {
		if len(of[dep]) == 0 {
			continue
		}
		image, err := e.readers.Reads(reader, dep, partition)
		if err != nil {
			return false, err
		}
		if image.All || slices.ContainsFunc(image.Keys, func(key string) bool { return of[dep][key] }) {
			return true, nil
		}
	}
	return false, nil
}
