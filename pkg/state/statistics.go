package state

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxSamples is the maximum number of attempts that the statistics of an asset describe: its newest successful ones.
const MaxSamples = 32

// AssetStatistics is a row of asset_statistics: the durations, output sizes and costs of the newest successful
// attempts of an asset. Each list has one value for each attempt, in the order of folding. Every success writes the
// row, so values have only three significant digits, which keeps the row small.
type AssetStatistics struct {
	AssetKey   string `col:"asset_key,key"`
	DurationMS string `col:"duration_ms"` // JSON list of whole numbers
	Rows       string `col:"rows"`
	Bytes      string `col:"bytes"`
	CPUMS      string `col:"cpu_ms"`           // null for an attempt that reported no CPU time
	MemoryMS   string `col:"allocated_mib_ms"` // MiB times milliseconds, with null as in CPUMS
	// Partitions has the number of partitions that each attempt has materialized. "": each attempt has materialized one,
	// or the asset has no partitions.
	Partitions string `col:"partitions,null"`
	Meta
}

// Key returns the primary key.
func (r *AssetStatistics) Key() string { return r.AssetKey }

func (*AssetStatistics) newTable() store {
	return new(rowTable[string, AssetStatistics, *AssetStatistics])
}

// Sample is the cost and the output of one successful attempt. A value below 0 means that the cost or the size is
// unknown.
type Sample struct {
	DurationMS, Rows, Bytes, CPUMS, MemoryMS int64
	// Partitions is the number of partitions of a batch. It is 1 for a task of one partition or of an asset without
	// partitions.
	Partitions int64
}

// Add adds an attempt to the lists. If they then have more than [MaxSamples] attempts, it drops the oldest.
func (r *AssetStatistics) Add(s Sample) {
	r.addPartitions(max(s.Partitions, 1))
	for _, column := range r.lists(&s) {
		*column.list = addSample(*column.list, *column.value)
	}
}

// addPartitions adds the number of partitions of the next attempt. Most assets have no batches: for these, the list
// stays empty.
func (r *AssetStatistics) addPartitions(n int64) {
	if r.Partitions == "" {
		if n == 1 {
			return
		}
		if r.DurationMS != "" {
			r.Partitions = "[1" + strings.Repeat(",1", strings.Count(r.DurationMS, ",")) + "]"
		}
	}
	r.Partitions = addSample(r.Partitions, n)
}

// Samples returns the attempts of a row, the oldest first.
func (r *AssetStatistics) Samples() ([]Sample, error) {
	var samples []Sample
	for i, column := range r.lists(&Sample{}) {
		var values []*int64
		if err := json.Unmarshal([]byte(*column.list), &values); err != nil {
			return nil, fmt.Errorf("read the statistics of asset %s: %w", r.AssetKey, err)
		}
		if i == 0 {
			samples = make([]Sample, len(values))
		}
		if len(values) != len(samples) {
			return nil, fmt.Errorf("read the statistics of asset %s: lists of %d and %d values", r.AssetKey, len(samples), len(values))
		}
		for j, v := range values {
			if v == nil {
				v = &unknownSample
			}
			*r.lists(&samples[j])[i].value = *v
		}
	}
	return samples, r.readPartitions(samples)
}

// readPartitions sets Partitions in each of the samples.
func (r *AssetStatistics) readPartitions(samples []Sample) error {
	partitions := slices.Repeat([]int64{1}, len(samples))
	if r.Partitions != "" {
		if err := json.Unmarshal([]byte(r.Partitions), &partitions); err != nil {
			return fmt.Errorf("read the statistics of asset %s: %w", r.AssetKey, err)
		}
	}
	if len(partitions) != len(samples) {
		return fmt.Errorf("read the statistics of asset %s: lists of %d and %d values", r.AssetKey, len(samples), len(partitions))
	}
	for i, n := range partitions {
		if n < 1 {
			return fmt.Errorf("read the statistics of asset %s: an attempt with %d partitions", r.AssetKey, n)
		}
		samples[i].Partitions = n
	}
	return nil
}

var unknownSample = int64(-1)

type sampleColumn struct {
	list  *string
	value *int64
}

// lists returns the row's columns with lists, each together with the value of the sample that belongs to the list.
func (r *AssetStatistics) lists(s *Sample) [5]sampleColumn {
	return [5]sampleColumn{
		{&r.DurationMS, &s.DurationMS}, {&r.Rows, &s.Rows}, {&r.Bytes, &s.Bytes}, {&r.CPUMS, &s.CPUMS}, {&r.MemoryMS, &s.MemoryMS},
	}
}

// addSample appends a value to a JSON list of at most [MaxSamples] values. It edits the text of the list without
// decoding it, because every successful attempt appends to five lists.
func addSample(list string, value int64) string {
	text := "null"
	if value >= 0 {
		text = strconv.FormatInt(RoundSample(value), 10)
	}
	inner := strings.TrimSuffix(strings.TrimPrefix(list, "["), "]")
	if inner == "" {
		return "[" + text + "]"
	}
	if strings.Count(inner, ",") == MaxSamples-1 {
		_, inner, _ = strings.Cut(inner, ",")
	}
	return "[" + inner + "," + text + "]"
}

// RoundSample rounds a value that is not negative to three significant digits.
func RoundSample(v int64) int64 {
	unit := int64(1)
	for v/unit >= 1000 {
		unit *= 10
	}
	rest := v % unit
	if v -= rest; rest >= unit-rest && v <= 1<<62 {
		v += unit
	}
	return v
}
