package work_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

func TestWorkloadsHaveTheirSizeAndStages(t *testing.T) {
	for name, want := range map[string]struct{ tasks, stages int }{"W1": {200, 200}, "W2": {1002, 3}, "W3": {2000, 7}, "W4": {500, 1}} {
		job, err := work.Named(name, 500)
		if err != nil {
			t.Fatal(err)
		}
		levels, err := job.Levels()
		if err != nil {
			t.Fatal(err)
		}
		if job.Tasks() != want.tasks || len(levels) != want.stages {
			t.Errorf("%s has %d tasks in %d stages, not %v", name, job.Tasks(), len(levels), want)
		}
		if job.AtOnce != min(job.Runs, 200) {
			t.Errorf("%s has %d of %d runs at once", name, job.AtOnce, job.Runs)
		}
	}
}

func TestEachLimitsConcurrentRuns(t *testing.T) {
	job := work.Job{Runs: 50, AtOnce: 5}
	var mu sync.Mutex
	done, now, most := make([]int, job.Runs), 0, 0
	err := job.Each(func(run int) error {
		mu.Lock()
		done[run]++
		now++
		most = max(most, now)
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		now--
		mu.Unlock()
		return nil
	})
	if err != nil || most > job.AtOnce || slices.ContainsFunc(done, func(times int) bool { return times != 1 }) {
		t.Errorf("%d at once, %v, %v", most, done, err)
	}
}

func TestEachStopsAfterError(t *testing.T) {
	var done atomic.Int64
	err := work.Job{Runs: 50, AtOnce: 2}.Each(func(int) error {
		done.Add(1)
		return errors.New("broken")
	})
	if err == nil || done.Load() > 2 {
		t.Errorf("%d runs, %v", done.Load(), err)
	}
}

// engine executes the tasks of a run in order.
type engine struct{}

func (engine) Do(_ context.Context, entry *work.Entry) error {
	return entry.Each(func(run int) error {
		for task := range entry.After {
			entry.Execute(run, task)
		}
		return nil
	})
}

func (engine) Close() error { return nil }

func TestServeWaitsForEndOfInput(t *testing.T) {
	job, err := work.Named(work.Idle, 300)
	if err != nil {
		t.Fatal(err)
	}
	order, err := json.Marshal(work.Order{Job: job, Warming: work.Warming()})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		in, tell := io.Pipe()
		var out bytes.Buffer
		ended := false
		go func() {
			open := func(context.Context, work.Job, work.Book) (work.Engine, error) { return engine{}, nil }
			if err := work.Serve(t.Context(), in, &out, open); err != nil {
				t.Error(err)
			}
			ended = true
		}()
		if _, err := tell.Write(append(order, '\n')); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var done work.Done
		if err := json.Unmarshal(out.Bytes(), &done); err != nil || done.Tasks != 300 || ended {
			t.Errorf("%+v, %v, ended: %t", done, err, ended)
		}
		tell.Close()
		synctest.Wait()
		if !ended {
			t.Error("Serve has not returned")
		}
	})
}

func TestCheckFindsMissingAndEarlyTasks(t *testing.T) {
	job := work.Job{Runs: 1, After: [][]int{{}, {0}}}
	for _, c := range []struct {
		executed []int
		right    bool
		repeated int
	}{
		{[]int{0, 1}, true, 0},
		{[]int{0, 1, 1}, true, 1},
		{[]int{0}, false, 0},
		{[]int{1, 0}, false, 0},
	} {
		check := work.NewCheck(job)
		for _, task := range c.executed {
			check.Execute(0, task)
		}
		done, err := check.Done()
		if (err == nil) != c.right || done.Repeated != c.repeated {
			t.Errorf("executed %v: %+v, %v", c.executed, done, err)
		}
	}
}

func TestLevelsRejectsOtherShapes(t *testing.T) {
	job := work.Job{Runs: 1, After: [][]int{{}, {0}, {0}, {1}}}
	if levels, err := job.Levels(); err == nil {
		t.Errorf("stages %v", levels)
	}
	if next := job.Next(); !slices.Equal(next[0], []int{1, 2}) {
		t.Errorf("after task 0 comes %v", next[0])
	}
}
