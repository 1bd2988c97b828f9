package foldtest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checkStatistics compares the statistics of assets with the successful tasks of the state. The statistics may also
// include tasks that are in history. Forgetting an asset deletes its statistics.
func checkStatistics(s *state.State) error {
	made := map[string][]state.Sample{}
	for t := range s.Tasks.All {
		if t.State == state.TaskSucceeded && t.Kind == event.KindTask && t.AssetKey != "" && s.ForgottenBy(t.AssetKey, t.RunID, t.Seq) == nil {
			made[t.AssetKey] = append(made[t.AssetKey], state.Sample{
				DurationMS: state.RoundSample(max(t.CompletedAt.Sub(t.StartedAt).Milliseconds(), 0)),
				Rows:       state.RoundSample(t.RowCount), Bytes: state.RoundSample(t.ByteSize),
				Partitions: int64(max(len(s.BatchOf(t.RunID, t.TaskKey)), 1)),
			})
		}
	}
	for _, asset := range slices.Sorted(maps.Keys(made)) {
		row := s.Statistics.Get(asset)
		if row == nil {
			return fmt.Errorf("asset %s has %d successes and no statistics", asset, len(made[asset]))
		}
		samples, err := row.Samples()
		switch {
		case err != nil:
			return err
		case len(samples) > state.MaxSamples || len(samples) < min(len(made[asset]), state.MaxSamples):
			return fmt.Errorf("the statistics of asset %s describe %d attempts, but %d have succeeded", asset, len(samples), len(made[asset]))
		case len(samples) == state.MaxSamples:
			continue // the statistics keep only the newest attempts
		}
		for i := range samples {
			samples[i].CPUMS, samples[i].MemoryMS = 0, 0 // rows of tasks do not contain these fields
		}
		for _, one := range made[asset] {
			at := slices.Index(samples, one)
			if at < 0 {
				return fmt.Errorf("the statistics of asset %s lack an attempt: %+v", asset, one)
			}
			samples = slices.Delete(samples, at, at+1)
		}
	}
	return nil
}
