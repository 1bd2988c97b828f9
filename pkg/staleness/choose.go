package staleness

import (
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// ToRun returns the partitions of the selected assets to materialize: all missing or stale partitions, and all
// partitions that read one of them. It omits partitions with incomplete inputs. Inputs are complete if, for each
// upstream asset, at least one of the partitions to read exists or is itself returned. If an asset requires complete
// inputs, all expected partitions to read must exist or be returned. blocked counts the omitted partitions of each
// asset, without those that [Evaluation.Impossible] counts.
func (e *Evaluation) ToRun(selected map[ids.AssetKey]bool) (chosen map[ids.AssetKey][]string, blocked map[ids.AssetKey]int, err error) {
	return e.choose(selected, func(p Partition, rereads bool) bool { return p.Status != Fresh || rereads })
}

// ToMake is like [Evaluation.ToRun], but returns only missing partitions.
func (e *Evaluation) ToMake(selected map[ids.AssetKey]bool) (chosen map[ids.AssetKey][]string, blocked map[ids.AssetKey]int, err error) {
	return e.choose(selected, func(p Partition, _ bool) bool { return p.Status == Missing })
}

// Unlisted returns an error for each asset that [Evaluation.ToRun] or [Evaluation.ToMake] has skipped because its
// partitions are too many to list.
func (e *Evaluation) Unlisted() []error { return e.unlisted }

// Impossible returns the number of partitions of each asset that [Evaluation.ToRun] or [Evaluation.ToMake] omitted
// because they can never be materialized: an upstream asset declares none of the partitions that they read.
func (e *Evaluation) Impossible() map[ids.AssetKey]int { return e.impossible }

func (e *Evaluation) choose(
	selected map[ids.AssetKey]bool, needs func(p Partition, rereads bool) bool,
) (chosen map[ids.AssetKey][]string, blocked map[ids.AssetKey]int, err error) {
	order, err := e.graph.Topological()
	if err != nil {
		return nil, nil, err
	}
	chosen, blocked = map[ids.AssetKey][]string{}, map[ids.AssetKey]int{}
	for _, key := range order {
		a, _ := e.graph.Asset(key)
		if !selected[key] || a.Broken != "" {
			continue
		}
		partitions, err := e.Partitions(key)
		if tooMany := new(space.TooManyError); errors.As(err, &tooMany) {
			e.unlisted = append(e.unlisted, err)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, p := range byTime(a, partitions) {
			if in := e.within[key]; in != nil && !in.all && !in.keys[p.Key] {
				continue
			}
			rereads, complete, err := e.inputs(a, p.Key, chosen)
			switch {
			case err != nil:
				return nil, nil, err
			case !needs(p, rereads):
			case !complete:
				never, err := e.readsUndeclared(a, p.Key)
				if err != nil {
					return nil, nil, err
				}
				if never {
					e.impossible[key]++
				} else {
					blocked[key]++
				}
			default:
				at, _ := slices.BinarySearch(chosen[key], p.Key) // nearly always at the end
				chosen[key] = slices.Insert(chosen[key], at, p.Key)
			}
		}
	}
	return chosen, blocked, nil
}

// readsUndeclared reports whether a partition can never be materialized, because at least one upstream asset declares
// none of the partitions that it would have to read.
func (e *Evaluation) readsUndeclared(a *plan.Asset, partition string) (bool, error) {
	for _, dep := range a.Deps {
		if dep == a.Key {
			continue
		}
		image, err := e.readers.Reads(a.Key, dep, partition)
		if err != nil || image.OnlyUndeclared {
			return err == nil, err
		}
	}
	return false, nil
}

// byTime returns the partitions of an asset in the order in which the evaluation must choose them. If the asset reads
// itself, this is the order of time, because later partitions read earlier ones.
func byTime(a *plan.Asset, partitions []Partition) []Partition {
	if !a.ReadsItself() {
		return partitions
	}
	at, keys := make(map[string]int, len(partitions)), make([]string, len(partitions))
	for i, p := range partitions {
		at[p.Key], keys[i] = i, p.Key
	}
	sorted := make([]Partition, len(partitions))
	for i, key := range a.Partitions.ByTime(keys) {
		sorted[i] = partitions[at[key]]
	}
	return sorted
}

// inputs reports whether a partition reads one of the chosen partitions, and whether its inputs are complete. The
// inputs are complete if, for each upstream asset, at least one of the partitions to read exists or is chosen. If the
// asset reads itself, it does not count as one of these upstream assets, because its first partitions have no earlier
// ones to read. If the asset requires complete inputs, every expected partition to read must exist or be chosen. The
// lists in chosen must be sorted.
func (e *Evaluation) inputs(a *plan.Asset, partition string, chosen map[ids.AssetKey][]string) (rereads, complete bool, err error) {
	complete = true
	for _, dep := range a.Deps {
		up, err := e.asset(dep)
		if err != nil {
			return false, false, err
		}
		keys, all, err := e.image(a, partition, up, chosen[dep])
		if err != nil {
			return false, false, err
		}
		missing, err := e.missingInput(a, up, keys, all, chosen[dep])
		if err != nil {
			return false, false, err
		}
		reads := all && len(chosen[dep])+len(up.keys) > 0 || dep == a.Key
		rereads = rereads || all && len(chosen[dep]) > 0
		for _, key := range keys {
			is := has(chosen[dep], key)
			rereads = rereads || is
			reads = reads || is || up.has(key)
		}
		complete = complete && reads && !missing
	}
	return rereads, complete, nil
}

// missingInput reports whether a reader requires complete inputs and lacks an expected partition of an upstream
// asset. The reader reads the partitions in keys or, if all is true, every partition.
func (e *Evaluation) missingInput(reader *plan.Asset, up *evaluated, keys []string, all bool, chosen []string) (bool, error) {
	if e.incomplete || !reader.RequiresComplete(up.asset.Key) {
		return false, nil
	}
	expected, err := e.expected(up)
	if tooMany := new(space.TooManyError); errors.As(err, &tooMany) {
		return true, nil // too many partitions to list: assume that one is missing
	}
	if err != nil {
		return false, err
	}
	absent := func(key string) bool { return !up.has(key) && !has(chosen, key) }
	if all {
		return slices.ContainsFunc(expected, absent), nil
	}
	return slices.ContainsFunc(keys, func(key string) bool { return absent(key) && has(expected, key) }), nil
}
