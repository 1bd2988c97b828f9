package fold

import (
	"encoding/json"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// measuredIn returns the values that check results contain, for comparison with the results of later outputs.
func measuredIn(results []event.CheckResult) (values []state.MeasuredValue) {
	for i := range results {
		if r := &results[i]; r.Measured != nil && !r.Broken {
			values = append(values, state.MeasuredValue{Check: r.Name, Season: r.Season, Metric: r.Metric, Value: *r.Measured})
		}
	}
	return values
}

// learn adds values of a published output to the history of the checks of its asset, unless a person has marked the
// output as missing or has forgotten the asset.
func (f *folder) learn(asset, partition, run, materialization string, measured []state.MeasuredValue) {
	m := f.st.Marks.Get(state.Key3{A: asset, B: partition, C: materialization})
	if m != nil && m.Mark == event.MarkMissing || f.st.ForgottenBy(asset, run, f.seq) != nil {
		return
	}
	for _, m := range measured {
		row := state.CheckHistory{AssetKey: asset, Check: m.Check, Season: m.Season}
		var values []state.HistoryValue
		if old := f.st.CheckHistory.Get(row.Key()); old != nil {
			values = historyIn(old)
		}
		row.Values = jsonOf(state.AddHistory(values, state.HistoryValue{Run: run, Partition: partition, Metric: m.Metric, Value: m.Value}))
		if old := f.st.CheckHistory.Get(row.Key()); old == nil || old.Values != row.Values {
			put(f, f.st.CheckHistory, &row)
		}
	}
}

// historyIn decodes the values that a row of check_history stores as JSON.
func historyIn(row *state.CheckHistory) (values []state.HistoryValue) {
	if json.Unmarshal([]byte(row.Values), &values) != nil {
		panic("fold: check_history of " + row.AssetKey + " is not JSON") // learn writes only valid JSON
	}
	return values
}

// unlearn removes the values of outputs that a person has marked as missing, because later outputs must not be
// compared with wrong values. It does not restore older values that were dropped to make room for these values.
func (f *folder) unlearn(asset string, partitions []event.MarkedPartition) {
	wrong := make(map[[2]string]bool, len(partitions))
	for _, m := range partitions {
		wrong[[2]string{m.RunID, m.Partition}] = m.RunID != ""
	}
	var changed []*state.CheckHistory
	f.st.CheckHistory.Ascend(state.Key3{A: asset}, func(row *state.CheckHistory) bool {
		if row.AssetKey != asset {
			return false
		}
		values := historyIn(row)
		kept := slices.DeleteFunc(slices.Clone(values), func(v state.HistoryValue) bool { return wrong[[2]string{v.Run, v.Partition}] })
		if len(kept) < len(values) {
			next := *row
			next.Values = jsonOf(kept)
			changed = append(changed, &next)
		}
		return true
	})
	for _, row := range changed {
		put(f, f.st.CheckHistory, row)
	}
}

// learnFrom adds the values that the checks of a candidate have measured, when the candidate is published.
func (f *folder) learnFrom(c *state.Candidate) {
	if c.Measured == "" {
		return
	}
	var measured []state.MeasuredValue
	if json.Unmarshal([]byte(c.Measured), &measured) != nil {
		panic("fold: measured values of candidate " + c.MaterializationID + " are not JSON") // quarantine writes only valid JSON
	}
	f.learn(c.AssetKey, c.PartitionKey, c.RunID, c.MaterializationID, measured)
}

// measuredText returns the values of [measuredIn] as JSON. If there are none, it returns "".
func measuredText(results []event.CheckResult) string {
	values := measuredIn(results)
	if len(values) == 0 {
		return ""
	}
	return jsonOf(values)
}
