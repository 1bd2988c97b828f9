package staleness

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// keyChanges records when the keys of a key set were last removed or added again.
type keyChanges struct {
	last map[string]int64 // the sequence number of the last change of each key
	// newest is the greatest of these sequence numbers.
	newest int64
}

// changes returns the changes of a key set.
func (e *Evaluation) changes(set string) keyChanges {
	c, known := e.sets[set]
	if known || e.data.KeyChanges == nil {
		return c
	}
	c.last = e.data.KeyChanges(set)
	for _, seq := range c.last {
		c.newest = max(c.newest, seq)
	}
	e.sets[set] = c
	return c
}

// changedSet returns a key set whose changes make a partition stale, or "" if no set does. Such a set contains a key
// that decides what the partition reads, and that was removed or added again after the partition was planned. The
// parameter inputs is the fold sequence number of the state on which the partition was planned.
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
			if changes.last[key] > inputs {
				return r.Set, nil
			}
		}
	}
	return "", nil
}
