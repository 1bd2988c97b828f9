package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// setPast records the earlier values with which the anomaly checks of a task compare the new values.
func (b *builder) setPast(t *Task, a *Asset) {
	for i := range a.Work.Checks {
		c := &a.Work.Checks[i]
		if c.Kind != quality.Anomaly {
			continue
		}
		season := ""
		if c.Params.Watch.Weekday {
			t.Season = weekday(a, t.PartitionKey)
			season = t.Season
		}
		if b.request.History == nil {
			continue
		}
		past := b.request.History(t.AssetKey, c, season, t.PartitionKey)
		if t.Past == nil {
			t.Past = map[string][]int64{}
		}
		t.Past[c.Name] = past[max(0, len(past)-c.Params.Watch.Window):]
	}
}

// weekday returns the day of the week of the date in a partition's key, in lower case.
func weekday(a *Asset, key string) string {
	at := a.Partitions.Time()
	partition, err := ids.ParsePartition(key)
	if at == nil || err != nil {
		return ""
	}
	value := partition[at.Name]
	day, err := time.Parse(time.DateOnly, value[:min(len(value), len(time.DateOnly))])
	if err != nil {
		return ""
	}
	return strings.ToLower(day.Weekday().String())
}

// setSchema records the schema of an asset's newest output, if a check of the asset compares schemas. For an asset
// without partitions, it also records the schema if the report of the run compares it: the output of the run replaces
// the newest output, so the state no longer has its schema when the report is written.
func (b *builder) setSchema(a *Asset) {
	reported := a.Partitions == nil && a.Work.SchemaDrift == ""
	if !reported && !slices.ContainsFunc(a.Work.Checks, func(c quality.Check) bool { return c.Kind == quality.SchemaDrift }) {
		return
	}
	newest := slices.MaxFunc(append(slices.Collect(maps.Values(b.made(a.Key))), Input{}), func(x, y Input) int {
		return cmp.Or(cmp.Compare(known(x), known(y)), cmp.Compare(x.Version, y.Version), cmp.Compare(x.PartitionKey, y.PartitionKey))
	})
	if newest.Schema == "" {
		return
	}
	if b.plan.Schemas == nil {
		b.plan.Schemas = map[string]Schema{}
	}
	b.plan.Schemas[a.Key.String()] = Schema{Hash: newest.Schema, URI: newest.URI}
}

// known returns 1 if the columns of an output are known, and 0 otherwise. It serves to compare outputs.
func known(in Input) int {
	if in.Schema == "" {
		return 0
	}
	return 1
}
