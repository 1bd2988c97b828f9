package staleness

import (
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/space"
)

// maxSearched is the number of visited partitions after which a search ends.
const maxSearched = 10_000

// node is a partition of an asset.
type node struct {
	asset     ids.AssetKey
	partition string
}

// search looks for stale and missing partitions that a fresh partition reads through other fresh partitions. It visits
// near partitions first. It does not search upstream of a stale or missing partition: the readers of this partition
// wait for it in any case.
type search struct {
	e     *Evaluation
	seen  map[node]bool
	whole map[ids.AssetKey]bool // the assets whose partitions have all been visited
	next  []node                // fresh partitions whose inputs are still to be visited
	found []Source
	// tooMany means that an upstream asset has too many partitions to list.
	tooMany bool
}

// indirect returns the stale and missing partitions that a fresh partition reads indirectly. If complete is false,
// there are too many partitions upstream, and indirect has not visited all of them.
func (e *Evaluation) indirect(asset ids.AssetKey, partition string) (found []Source, complete bool, err error) {
	start := node{asset, partition}
	s := search{e: e, seen: map[node]bool{start: true}, whole: map[ids.AssetKey]bool{}, next: []node{start}}
	for len(s.next) > 0 && !s.full() {
		n := s.next[0]
		s.next = s.next[1:]
		reader, err := e.asset(n.asset)
		if err != nil {
			return nil, false, err
		}
		for _, dep := range reader.asset.Deps {
			if err := s.visitInputs(reader, n.partition, dep); err != nil {
				return nil, false, err
			}
		}
	}
	for i := range s.found {
		up, err := e.asset(s.found[i].Asset)
		if err != nil {
			return nil, false, err
		}
		if err := e.addRow(up, &s.found[i]); err != nil {
			return nil, false, err
		}
	}
	return s.found, !s.full() && !s.tooMany, nil
}

// full reports whether the search has visited as many partitions as it may.
func (s *search) full() bool { return len(s.seen) > maxSearched }

// visitInputs visits the partitions of an upstream asset that a partition reads.
func (s *search) visitInputs(reader *evaluated, partition string, dep ids.AssetKey) error {
	if s.whole[dep] {
		return nil
	}
	up, err := s.e.asset(dep)
	if err != nil {
		return err
	}
	keys, all, err := s.e.image(reader.asset, partition, up, nil)
	if err != nil {
		return err
	}
	if all {
		s.whole[dep] = true
		if up, err = s.e.load(dep); err != nil {
			return err
		}
		keys, err = s.e.allKeys(up)
		if tooMany := new(space.TooManyError); errors.As(err, &tooMany) {
			s.tooMany = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	for _, key := range keys {
		if s.full() {
			return nil
		}
		if n := (node{dep, key}); !s.seen[n] {
			s.seen[n] = true
			if err := s.visit(up, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// visit records a stale or missing partition, or adds a fresh partition to next.
func (s *search) visit(up *evaluated, n node) error {
	q, err := s.e.cell(up, n.partition)
	if err != nil {
		return err
	}
	status := Missing
	switch {
	case q != nil:
		if status, err = s.e.status(up, n.partition, q); err != nil {
			return err
		}
	case !up.expects(n.partition):
		return nil
	}
	if status == Fresh {
		s.next = append(s.next, n)
		return nil
	}
	s.found = count(s.found, n, status)
	return nil
}

// count adds a partition to the source with the same asset and status, or creates this source.
func count(sources []Source, n node, status Status) []Source {
	at := slices.IndexFunc(sources, func(s Source) bool { return s.Asset == n.asset && s.Status == status })
	if at < 0 {
		at, sources = len(sources), append(sources, Source{Asset: n.asset, Key: n.partition, Status: status})
	}
	sources[at].Count++
	return sources
}
