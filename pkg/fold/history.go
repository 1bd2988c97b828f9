package fold

import (
	"encoding/json"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// measuredIn returns the values that later results are compared with.
func measuredIn(results []event.CheckResult) (values []state.MeasuredValue) {
	for i := range results {
		if r := &results[i]; r.Measured != nil && !r.Broken {
			values = append(values, state.MeasuredValue{Check: r.Name, Season: r.Season, Value: *r.Measured})
		}
	}
	return values
}

// learn adds values of a published output to the history of the checks of its asset.
func (f *folder) learn(asset, partition, run string, measured []state.MeasuredValue) {
	for _, m := range measured {
		row := state.CheckHistory{AssetKey: asset, Check: m.Check, Season: m.Season}
		var values []state.HistoryValue
		if old := f.st.CheckHistory.Get(row.Key()); old != nil {
			if json.Unmarshal([]byte(old.Values), &values) != nil {
				panic("fold: check_history of " + asset + " is not JSON") // learn writes it
			}
		}
		row.Values = jsonOf(state.AddHistory(values, state.HistoryValue{Run: run, Partition: partition, Value: m.Value}))
		if old := f.st.CheckHistory.Get(row.Key()); old == nil || old.Values != row.Values {
			put(f, f.st.CheckHistory, &row)
		}
	}
}

// learnFrom adds what the checks of a candidate have measured, when it is published.
func (f *folder) learnFrom(c *state.Candidate) {
	if c.Measured == "" {
		return
	}
	var measured []state.MeasuredValue
	if json.Unmarshal([]byte(c.Measured), &measured) != nil {
		panic("fold: measured values of candidate " + c.MaterializationID + " are not JSON") // quarantine writes them
	}
	f.learn(c.AssetKey, c.PartitionKey, c.RunID, measured)
}

// measuredText returns the values that later results are compared with as JSON, or "".
func measuredText(results []event.CheckResult) string {
	values := measuredIn(results)
	if len(values) == 0 {
		return ""
	}
	return jsonOf(values)
}
