// Package staleness decides which partitions are missing, fresh or stale. It compares the versions that the rows of
// partitions record with the assets' current definitions. The package is pure. This package is not a stable API.
//
// A chain of retries consists of a run, its root run, and the retries of this run, which execute the same plan. The
// version of a partition is the fold sequence number at which its output became visible. The column left_out is
// described in [state.Task]. The inputs sequence of a partition is the fold sequence number of the state on which the
// root run was planned. It is 0 if the task had a left_out other than 0.
//
// A materialized partition p is stale if at least one of these holds:
//
//   - Code: the code of p is neither the current code of the asset nor accepted instead of it.
//   - Early: the run of p was requested before p was expected: the period of p had not ended, or the time ready_after
//     had not passed since its end. By now, p is expected.
//   - Upstream: p reads a partition q by the current definition, the version of q is greater than the
//     inputs sequence of p, and p did not read q in its own chain of retries.
//   - Future: p reads all or the newest periods of an upstream asset, and a partition q of that asset was made before
//     the period of q began. The period has begun by now, but had not begun when the run that planned p was requested.
//     So p has not read q, even if the same run made both.
//   - Mark: a person marked p as stale.
//   - Keys: p reads the partitions of several keys of a key set, and since p was planned, one of these keys was removed
//     or added again.
//
// p read q in its own chain if all of these hold:
//
//   - p and q have the same root run. If left_out is not 0 for p and the inputs sequence of p is 0, p and q must have
//     the same run: p may have run in a retry that had repeated an upstream task without success. Then p did not
//     read the output that an earlier run of the chain had made for that task.
//   - The version of q is less than the version of p.
//   - If left_out is not 0 for p, the version of q is at most left_out.
//   - q was not published from quarantine by a decision.
//
// If a person marked p as fresh, p is treated as if it had been planned on the state that the person saw. A partition
// that a person marked as missing is treated as not materialized. Its version is the sequence number of the mark, and
// no chain has read this version.
package staleness

// newer reports whether p, which reads q, is stale because of the version of q.
func newer(p, q *cell) bool {
	return q.version > p.inputs && (q.readBy(p.incomplete) != p.reads() || !readInChain(p, q.version))
}

// readInChain reports whether p has read a version that its own chain of retries made. The caller must have checked
// that the chain made it or, if p is incomplete, that p's own run made it.
func readInChain(p *cell, version int64) bool {
	return version < p.version && (p.leftOut == 0 || version <= p.leftOut)
}

// newest summarizes the versions of many partitions. A partition that reads all of them is compared only with this
// summary.
type newest struct{ chains, runs greatest }

func (n *newest) add(q *cell) {
	n.chains.add(q.version, q.readBy(false))
	n.runs.add(q.version, q.readBy(true))
}

// newerThan reports whether p is stale because of one of the partitions.
func (n *newest) newerThan(p *cell) bool {
	if p.incomplete {
		return n.runs.newerThan(p)
	}
	return n.chains.newerThan(p)
}

// greatest contains the greatest version of many partitions, the chain of retries that made it, and the greatest
// version of all other chains. In newest.runs, runs take the role of chains.
type greatest struct {
	version int64
	by      uint32 // the chain or the run that made version
	other   int64  // the greatest version that any other chain or run made
}

func (g *greatest) add(version int64, by uint32) {
	switch {
	case version > g.version:
		if by != g.by {
			g.other = g.version
		}
		g.version, g.by = version, by
	case by != g.by:
		g.other = max(g.other, version)
	}
}

// newerThan reports whether p is stale because of one of the versions. If p's own chain or run made the greatest
// version, the other versions that this chain or run made need no comparison: if p has read the greatest version, it
// has also read the lesser ones.
func (g *greatest) newerThan(p *cell) bool {
	if g.by != p.reads() {
		return g.version > p.inputs
	}
	return g.other > p.inputs || g.version > p.inputs && !readInChain(p, g.version)
}
