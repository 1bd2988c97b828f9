package repair

import (
	"sort"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// versions translates the state that a plan observed into a sequence number of this fold. This is needed because the
// plan recorded a number of the earlier fold, whose numbers differ. The result is the greatest version that was created
// no later than the time of the observed state.
//
// A version is omitted if a greater version is as old or older, so the sequence numbers and the times both ascend.
type versions []version

type version struct {
	at  event.Time
	seq int64
}

// note adds the versions that a folded group may have created.
func (v *versions) note(g fold.Group, r fold.Result) {
	if r.Known || r.Row.Outcome != state.Folded {
		return
	}
	for i, e := range g.Events {
		task, ended := e.Payload.(*event.TaskFinished)
		_, changed := e.Payload.(*event.PartitionsChanged)
		_, marked := e.Payload.(*event.PartitionsMarked)
		if changed || marked || ended && task.Outcome == event.Succeeded {
			v.add(version{e.Time, r.Row.FirstSeq + int64(i)})
		}
	}
}

func (v *versions) add(next version) {
	keep := len(*v)
	for keep > 0 && (*v)[keep-1].at >= next.at {
		keep--
	}
	*v = append((*v)[:keep], next)
}

// observed returns the sequence numbers of the states that the writers of a group's plans and marks observed, by run or
// command. It returns nil if the group has neither plans nor marks.
func (v versions) observed(g fold.Group) map[string]int64 {
	if g.Reason != "" {
		return nil // the group was refused, and its events may not have been read
	}
	var observed map[string]int64
	note := func(id string, at event.Time) {
		if observed == nil {
			observed = map[string]int64{}
		}
		observed[id] = v.until(at)
	}
	for _, e := range g.Events {
		if p, ok := e.Payload.(*event.PlanCreated); ok {
			note(p.RunID, p.ObservedTime)
		}
		if p, ok := e.Payload.(*event.PartitionsMarked); ok {
			note(p.CommandID, p.ObservedTime)
		}
	}
	return observed
}

// until returns the greatest version no later than a time, or 0.
func (v versions) until(at event.Time) int64 {
	n := sort.Search(len(v), func(i int) bool { return v[i].at > at })
	if n == 0 {
		return 0
	}
	return v[n-1].seq
}
