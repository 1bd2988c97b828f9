package staleness

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// keyChanges says when the keys of a key set were last removed or added again.
type keyChanges struct {
	of map[string]int64
	// newest is the greatest sequence number of any of them.
	newest int64
}

// changes returns the changes of a key set.
func (e *Evaluation) changes(set string) keyChanges {
	c, known := e.sets[set]
	if known || e.data.KeyChanges == nil {
		return c
	}
	c.of = e.data.KeyChanges(set)
	for _, seq := range c.of {
		c.newest = max(c.newest, seq)
	}
	e.sets[set] = c
	return c
}

// changedSet returns a key set of an upstream asset from which a key was removed, or to which one was
// added again, after the state on which a partition was planned, inputs, if the partition would therefore read other partitions
// now. It returns "" if there is none.
func (e *Evaluation) changedSet(reader *plan.Asset, partition string, inputs int64, up *evaluated) (string, error) {
	images, err := e.readers.Of(reader.Key, up.asset.Key)
	if err != nil {
		return "", err
	}
	reads, err := images.KeyReads(partition)
	if err != nil {
		return "", fmt.Errorf("partition %s of asset %s: %w", partition, reader.Key, err)
	}
	for _, r := range reads {
		changes := e.changes(r.Set)
		if changes.newest <= inputs {
			continue
		}
		if r.Keys == nil {
			return r.Set, nil
		}
		for _, key := range r.Keys {
			if changes.of[key] > inputs {
				return r.Set, nil
			}
		}
	}
	return "", nil
}
