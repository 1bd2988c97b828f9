package state

import (
	"cmp"
	"slices"
)

// MaxHistory is how many values of a check are kept for each season. If the check has the setting `seasonal`, a season
// is a day of the week; otherwise, all values belong to one season, "".
const MaxHistory = 64

// CheckHistory is a row of check_history: the values that a check has measured in published outputs, in
// one season.
type CheckHistory struct {
	AssetKey string `col:"asset_key,key,dict"`
	Check    string `col:"check_name,key"`
	Season   string `col:"season,key"` // for example monday; "": the check is not seasonal
	// Values is a JSON list of the newest [MaxHistory] values ([HistoryValue]), sorted by run and partition.
	Values string `col:"measured"`
	Meta
}

// HistoryValue is a value that a check has measured.
type HistoryValue struct {
	Run       string `json:"run"`
	Partition string `json:"partition,omitempty"`
	// Metric names what the check has measured; "": the number of rows.
	Metric string `json:"metric,omitempty"`
	Value  int64  `json:"value"`
}

// Key returns the primary key.
func (r *CheckHistory) Key() Key3 { return Key3{r.AssetKey, r.Check, r.Season} }

func (*CheckHistory) newTable() store { return new(rowTable[Key3, CheckHistory, *CheckHistory]) }

// compare orders values by age: the value of the run that was triggered later is newer.
func (v *HistoryValue) compare(o *HistoryValue) int {
	return cmp.Or(cmp.Compare(v.Run, o.Run), cmp.Compare(v.Partition, o.Partition))
}

// AddHistory adds a value to a sorted list. The list keeps one value for each partition: that of the newest run. For
// an unpartitioned asset, it keeps the value of every run. The result does not depend on the order of additions.
func AddHistory(values []HistoryValue, added HistoryValue) []HistoryValue {
	if added.Partition != "" {
		if at := slices.IndexFunc(values, func(v HistoryValue) bool { return v.Partition == added.Partition }); at >= 0 {
			if values[at].compare(&added) >= 0 {
				return values
			}
			values = slices.Delete(slices.Clone(values), at, at+1)
		}
	}
	at, found := slices.BinarySearchFunc(values, added, func(v, o HistoryValue) int { return v.compare(&o) })
	if found {
		return values
	}
	values = slices.Insert(slices.Clone(values), at, added)
	return values[max(0, len(values)-MaxHistory):]
}
