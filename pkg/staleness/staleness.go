// Package staleness decides which partitions are missing, fresh or stale. It compares what the rows
// of partitions record about their versions with the assets' current definitions. The package is
// pure. This package is not a stable API.
//
// A materialized partition p is stale if at least one of these holds:
//
//   - Code: its code is neither the current code of the asset nor accepted in its place.
//   - Early: its run was requested before its period had ended and ready_after had passed. By now, both
//     have happened.
//   - Upstream: p reads a partition q by the current definition, the version of q is greater than the
//     inputs sequence of p, and p did not read q in its own chain of retries.
//   - Mark: a person marked it as stale.
//   - Keys: p reads partitions of more than one key of a key set, and one of these keys was removed or
//     added again after the state on which p was planned.
//
// p read q in its own chain if all of these hold:
//
//   - p and q have the same root run.
//   - The version of q is less than that of p.
//   - If p has left_out, the version of q is at most left_out.
//   - q was not published from quarantine by a decision.
//
// If a person marked p as fresh, p counts as planned on the state that the person saw. A partition that a
// person marked as missing counts as not materialized; the mark is its version, and no chain has read it.
package staleness

// newer reports whether q, which p reads, makes p stale.
func newer(p, q *cell) bool {
	return q.version > p.inputs && (q.readIn != p.root || !readInChain(p, q.version))
}

// readInChain reports whether p read a version that its own chain of retries made.
func readInChain(p *cell, version int64) bool {
	return version < p.version && (p.leftOut == 0 || version <= p.leftOut)
}

// newest summarizes the versions of many partitions, so that a reader of all of them is compared with
// three values instead of each version.
type newest struct {
	version int64
	root    uint32 // the root run of version
	other   int64  // the greatest version of any other root run
}

func (n *newest) add(q *cell) {
	switch {
	case q.version > n.version:
		if q.readIn != n.root {
			n.other = n.version
		}
		n.version, n.root = q.version, q.readIn
	case q.readIn != n.root:
		n.other = max(n.other, q.version)
	}
}

// newerThan reports whether any of the partitions makes p stale. The greatest version is enough to decide
// about p's own chain of retries: if p read that version, it also read every lesser version of the chain.
func (n *newest) newerThan(p *cell) bool {
	if n.root != p.root {
		return n.version > p.inputs
	}
	return n.other > p.inputs || n.version > p.inputs && !readInChain(p, n.version)
}
