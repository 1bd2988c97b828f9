package bench

import (
	"context"
	"slices"
)

// turns is how many samples of each history are taken for one of another workload: what
// is compared differs by less than samples scatter.
const turns = 5

// withHistory measures a workload on stores that have finished tasks in them, each
// so many. The samples of one history share its store: what they add to it is
// little. They take turns with those of the others, in this order and in the other, so
// that a machine that is busy for a while is so for all.
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
		for range turns * cfg.Samples {
			slices.Reverse(order)
			for _, i := range order {
				s, err := measured(func(s *sample) error { return cfg.onFolder(ctx, dirs[i], w, s) })
				if err != nil {
					return err
				}
				s.objects, s.bytes = 0, 0 // what the folder holds is history
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

// ratio is the median of what samples are of those that were taken in the same turn.
func ratio(of, to []float64) float64 {
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = of[i] / to[i]
	}
	return median(ratios)
}

// inFolders is inFolder with several.
func (cfg Config) inFolders(dirs []string, do func() error) error {
	if len(dirs) == 0 {
		return do()
	}
	return cfg.inFolder(func(dir string) error {
		dirs[0] = dir
		return cfg.inFolders(dirs[1:], do)
	})
}
