package state

import "encoding/json"

// Batch is a row of task_partitions: the partitions that a task materializes together. A task that materializes a
// single partition has no such row. The list is not part of the task's row, because the fold writes that row at every
// change of the task's state. It writes the row of task_partitions only once.
type Batch struct {
	RunID   string `col:"run_id,key"`
	TaskKey string `col:"task_key,key"`
	// Partitions is a JSON list of the partition keys, in the order in which the task's definition lists them.
	Partitions string `col:"partitions"`
	Meta
}

// Key returns the primary key.
func (r *Batch) Key() Key2 { return Key2{r.RunID, r.TaskKey} }

func (*Batch) newTable() store { return new(rowTable[Key2, Batch, *Batch]) }

// List returns the keys of the partitions.
func (r *Batch) List() []string {
	var keys []string
	if err := json.Unmarshal([]byte(r.Partitions), &keys); err != nil {
		panic("state: partitions of task " + r.TaskKey + ": " + err.Error()) // the fold writes only valid JSON
	}
	return keys
}

// BatchOf returns the partitions of a task that materializes several, or nil.
func (s *State) BatchOf(runID, taskKey string) []string {
	if s.Batches.Len() == 0 { // avoid an allocation in the usual case
		return nil
	}
	row := s.Batches.Get(Key2{runID, taskKey})
	if row == nil {
		return nil
	}
	return row.List()
}

// PartitionsOf returns the keys of the partitions that a task materializes. For a task without a batch, this is one
// key, which is empty for an unpartitioned asset.
func (s *State) PartitionsOf(t *Task) []string {
	if keys := s.BatchOf(t.RunID, t.TaskKey); keys != nil {
		return keys
	}
	return []string{t.PartitionKey}
}
