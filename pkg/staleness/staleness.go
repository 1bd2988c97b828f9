// Package staleness decides which partitions are missing, fresh or stale. It compares what the rows
// of partitions record about their versions with the assets' current definitions. The package is
// pure. This package is not a stable API.
//
// A materialized partition p is stale if at least one of these holds:
//
//   - Code: its code is neither the current code of the asset nor one that counts as it.
//   - Upstream: for a partition q that p reads by the current definition, the version of q is greater
//     than the inputs sequence of p, and p did not read q in its own chain of retries.
//
// p read q in its own chain if both have the same root run, the version of q is less than that of p,
// and q was not left out: q is left out if p has left_out and the version of q is greater.
package staleness

import "github.com/servo-orchestration/servo/pkg/state"

// newer reports whether q, which p reads, makes p stale.
func newer(p, q *state.Partition) bool {
	return q.VersionSeq > p.InputsSeq && (q.Root() != p.Root() || !readInChain(p, q.VersionSeq))
}

// readInChain reports whether p read a version that its own chain of retries made.
func readInChain(p *state.Partition, version int64) bool {
	return version < p.VersionSeq && (p.LeftOut == 0 || version <= p.LeftOut)
}

// newest summarizes the versions of many partitions, so that a reader of all of them is compared with
// three values instead of each version.
type newest struct {
	version int64
	root    string // the root run of version
	other   int64  // the greatest version of any other root run
}

func (n *newest) add(q *state.Partition) {
	root := q.Root()
	switch {
	case q.VersionSeq > n.version:
		if root != n.root {
			n.other = n.version
		}
		n.version, n.root = q.VersionSeq, root
	case root != n.root:
		n.other = max(n.other, q.VersionSeq)
	}
}

// newerThan reports whether any of the partitions makes p stale. If p read the greatest version of its
// own chain, it read the lesser ones, too.
func (n *newest) newerThan(p *state.Partition) bool {
	if n.root != p.Root() {
		return n.version > p.InputsSeq
	}
	return n.other > p.InputsSeq || n.version > p.InputsSeq && !readInChain(p, n.version)
}
