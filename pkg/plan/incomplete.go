package plan

import (
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Incomplete is an upstream asset from which a reader gets fewer partitions than expected.
type Incomplete struct {
	Asset    string `json:"asset"`
	Upstream string `json:"upstream"`
	Expected int    `json:"expected"`
	Read     int    `json:"read"` // of those expected
	// Missing are the days that are not read, as ranges.
	Missing string `json:"missing"`
}

// String formats i for people: "reads 4 of 10 partitions of raw/events; missing
// 2024-01-05..2024-01-10".
func (i Incomplete) String() string {
	return fmt.Sprintf("%s reads %d of %d partitions of %s; missing %s", i.Asset, i.Read, i.Expected, i.Upstream, i.Missing)
}

// noteIncomplete records which partitions are missing for an asset that reads all partitions of
// upstream. A partition is missing if it is declared and has ended, no earlier run materialized
// it, and this run does not either.
func (b *builder) noteIncomplete(reader ids.AssetKey, upstream *Asset, items []Input) {
	p := upstream.Partitions
	if p == nil {
		return
	}
	last := p.End
	if ended := b.request.Calendar.LastEnded(p); ended != "" && (last == "" || ended < last) {
		last = ended
	}
	if last == "" || last < p.Start {
		return
	}
	expected, err := Days(p.Start, last)
	if err != nil {
		return // more days than can be listed
	}
	if zone, err := b.request.Calendar.zone(p); err == nil && zone != nil {
		expected = withoutSkipped(expected, zone)
	}
	has := make(map[string]bool, len(items))
	for _, in := range items {
		has[p.dayOf(in.PartitionKey)] = true
	}
	var missing []string
	read := 0
	for i, day := range expected {
		switch {
		case has[day]:
			read++
		case i > 0 && len(missing) > 0 && !has[expected[i-1]]:
			first, _, _ := strings.Cut(missing[len(missing)-1], "..")
			missing[len(missing)-1] = first + ".." + day
		default:
			missing = append(missing, day)
		}
	}
	if len(missing) > 0 {
		b.plan.Incomplete = append(b.plan.Incomplete, Incomplete{
			Asset: reader.String(), Upstream: upstream.Key.String(), Expected: len(expected), Read: read, Missing: someOf(missing),
		})
	}
}
