package bench

import (
	"context"
	"slices"
)

// W5 takes five times as many samples of each store as Config.Samples says, because the differences between the stores
// are smaller than the scatter of the samples.
const rounds = 5

// withHistory measures a workload on several stores, each with another number of finished tasks. A store is used for
// many samples, because a sample adds little to it. The samples alternate between the stores, so that a temporary load
// on the machine affects all stores.
func withHistory(ctx context.Context, cfg Config, w Workload) (results []Result, err error) {
	dirs := make([]string, len(cfg.History))
	samples := make([][]sample, len(cfg.History))
	err = cfg.inFolders(dirs, func() error {
		for i, tasks := range cfg.History {
			if err := cfg.seed(ctx, dirs[i], tasks, seededTasks); err != nil {
				return err
			}
		}
		order := make([]int, len(dirs))
		for i := range order {
			order[i] = i
		}
		for range rounds * cfg.Samples {
			slices.Reverse(order)
			for _, i := range order {
				s, err := measured(func(s *sample) error { return cfg.onFolder(ctx, dirs[i], w, s) })
				if err != nil {
					return err
				}
				s.objects, s.bytes = 0, 0 // not measured: most files in the folder belong to the history
				samples[i] = append(samples[i], s)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, tasks := range cfg.History {
		r := cfg.result(w, samples[i])
		r.History = &tasks
		if i > 0 {
			r.Ratio = ratio(r.Samples, results[0].Samples)
		}
		results = append(results, r)
	}
	return results, nil
}

// ratio divides each sample by the baseline's sample of the same round, and returns the median of the quotients.
func ratio(samples, baseline []float64) float64 {
	ratios := make([]float64, len(samples))
	for i := range samples {
		ratios[i] = samples[i] / baseline[i]
	}
	return median(ratios)
}

// inFolders works like inFolder, for several folders.
func (cfg Config) inFolders(dirs []string, do func() error) error {
	if len(dirs) == 0 {
		return do()
	}
	return cfg.inFolder(func(dir string) error {
		dirs[0] = dir
		return cfg.inFolders(dirs[1:], do)
	})
}
