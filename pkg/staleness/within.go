package staleness

import (
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/space"
)

// within contains the allowed partitions of an asset. If the field all is true, every partition is allowed.
type within struct {
	all  bool
	keys map[string]bool
}

// Restrict limits the results of [Evaluation.ToRun] and [Evaluation.ToMake] to two kinds of partitions: the given ones,
// and the partitions of selected assets that the given ones read, directly or through other selected assets.
func (e *Evaluation) Restrict(to map[ids.AssetKey][]string, selected map[ids.AssetKey]bool) error {
	order, err := e.graph.Topological()
	if err != nil {
		return err
	}
	e.within = map[ids.AssetKey]*within{}
	for key := range selected {
		e.within[key] = &within{keys: map[string]bool{}}
	}
	for key, keys := range to {
		for _, partition := range keys {
			e.within[key].keys[partition] = true
		}
	}
	for _, key := range slices.Backward(order) { // readers first
		if selected[key] {
			if err := e.addReads(key); err != nil {
				return err
			}
		}
	}
	return nil
}

// addReads also allows the upstream partitions that the allowed partitions of an asset read.
func (e *Evaluation) addReads(key ids.AssetKey) error {
	a, _ := e.graph.Asset(key)
	here := e.within[key]
	if here.all {
		for _, dep := range a.Deps {
			if up := e.within[dep]; up != nil {
				up.all = true
			}
		}
		return nil
	}
	left := make([]string, 0, len(here.keys))
	for partition := range here.keys {
		left = append(left, partition)
	}
	for len(left) > 0 {
		partition := left[len(left)-1]
		left = left[:len(left)-1]
		for _, dep := range a.Deps {
			to := e.within[dep]
			if to == nil {
				continue
			}
			keys, all, err := e.couldRead(key, partition, dep)
			if err != nil {
				return err
			}
			to.all = to.all || all
			for _, up := range keys {
				if dep == key && !to.keys[up] { // the asset reads its own partitions
					left = append(left, up)
				}
				to.keys[up] = true
			}
		}
	}
	return nil
}

// couldRead returns the partitions of an upstream asset that a partition would read if all expected partitions of that
// asset existed.
func (e *Evaluation) couldRead(reader ids.AssetKey, partition string, dep ids.AssetKey) (keys []string, all bool, err error) {
	a, _ := e.graph.Asset(reader)
	up, err := e.asset(dep)
	if err != nil {
		return nil, false, err
	}
	expected, err := e.expected(up)
	if tooMany := new(space.TooManyError); errors.As(err, &tooMany) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	return e.image(a, partition, up, expected)
}
