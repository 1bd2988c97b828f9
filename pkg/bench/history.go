package bench

import "context"

// withHistory measures a workload on a store that has finished tasks in it, for
// each of so many. The samples of one history share its store: what they add to it
// is little.
func withHistory(ctx context.Context, cfg Config, w Workload) ([]Result, error) {
	var results []Result
	for _, tasks := range cfg.History {
		resetPeakRSS()
		r, err := cfg.afterHistory(ctx, w, tasks)
		if err != nil {
			return nil, err
		}
		if len(results) > 0 {
			r.Ratio = r.Median / results[0].Median
		}
		results = append(results, r)
	}
	return results, nil
}

func (cfg Config) afterHistory(ctx context.Context, w Workload, tasks int) (Result, error) {
	var samples []sample
	err := cfg.inFolder(func(dir string) error {
		if err := cfg.seed(ctx, dir, tasks, seededTasks); err != nil {
			return err
		}
		for range cfg.Samples {
			var s sample
			if err := cfg.onFolder(ctx, dir, w, &s); err != nil {
				return err
			}
			s.objects, s.bytes = 0, 0 // what the folder holds is history
			samples = append(samples, s)
		}
		return nil
	})
	if err != nil {
		return Result{}, err
	}
	r := cfg.result(w, samples)
	r.History = &tasks
	return r, nil
}
