package work_test

import (
	"slices"
	"testing"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

func TestEveryWorkloadIsOfItsSizeAndInStages(t *testing.T) {
	for name, want := range map[string]struct{ tasks, stages int }{"W1": {200, 200}, "W2": {1002, 3}, "W3": {2000, 7}} {
		job, err := work.Of(name)
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
	}
}

func TestACheckMissesNothing(t *testing.T) {
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

func TestOtherShapesThanStagesAreRefused(t *testing.T) {
	job := work.Job{Runs: 1, After: [][]int{{}, {0}, {0}, {1}}}
	if levels, err := job.Levels(); err == nil {
		t.Errorf("stages %v", levels)
	}
	if next := job.Next(); !slices.Equal(next[0], []int{1, 2}) {
		t.Errorf("after task 0 comes %v", next[0])
	}
}
