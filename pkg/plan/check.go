package plan

// CheckSelection returns an error if a request selects partitions that its assets cannot have at the time
// r.Calendar.Now. It reads no outputs, because they may change before the run is planned. A selection by status, such as
// missing, therefore selects every partition.
func CheckSelection(r Request) error {
	selections := make([]Selection, len(r.Partitions))
	for i, s := range r.Partitions {
		selections[i] = Selection{Clauses: s.Clauses, Everything: len(s.Clauses) == 0}
	}
	r.Partitions = selections
	b, err := newBuilder(r, MaxTasks)
	if err != nil {
		return err
	}
	return b.selectAssets()
}
