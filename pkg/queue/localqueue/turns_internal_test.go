package localqueue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/queue"
)

// naive chooses the same next task as turns, but by comparing all due tasks.
type naive struct {
	due      []*task
	inFlight map[string]int
	turn     map[string]int // contains only groups with tasks that are due or in flight
	clock    int
}

func (n *naive) join(group string) {
	if _, ok := n.turn[group]; !ok {
		n.turn[group] = n.clock
	}
}

func (n *naive) leave(group string) {
	if n.inFlight[group] == 0 && !slices.ContainsFunc(n.due, func(t *task) bool { return t.Turn.Group == group }) {
		delete(n.turn, group)
	}
}

// before reports whether task a is delivered before task b.
func (n *naive) before(a, b *task) bool {
	groupA, groupB := a.Turn.Group, b.Turn.Group
	switch {
	case a.Turn.Priority != b.Turn.Priority:
		return a.Turn.Priority > b.Turn.Priority
	case groupA != groupB && n.inFlight[groupA] != n.inFlight[groupB]:
		return n.inFlight[groupA] < n.inFlight[groupB]
	case groupA != groupB && n.turn[groupA] != n.turn[groupB]:
		return n.turn[groupA] < n.turn[groupB]
	case !a.since.Equal(b.since):
		return a.since.Before(b.since)
	}
	return a.arrival < b.arrival
}

// pop removes and returns the task that goes before all others.
func (n *naive) pop() *task {
	if len(n.due) == 0 {
		return nil
	}
	best := 0
	for i := range n.due {
		if n.before(n.due[i], n.due[best]) {
			best = i
		}
	}
	t := n.due[best]
	n.due = slices.Delete(n.due, best, best+1)
	n.inFlight[t.Turn.Group]++
	n.clock += 2
	n.turn[t.Turn.Group] = n.clock + 1
	return t
}

// TestTurnsMatchComparisonOfAllTasks compares turns with naive in random sequences of pushes, pops, removals and ends
// of deliveries.
func TestTurnsMatchComparisonOfAllTasks(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible
		s, n := newTurns(), &naive{inFlight: map[string]int{}, turn: map[string]int{}}
		var flying []*task
		arrivals := uint64(0)
		for step := range 300 {
			switch r.IntN(5) {
			case 0, 1:
				arrivals++
				item := &task{Task: queue.Task{Name: fmt.Sprint(step), Turn: queue.Turn{
					Priority: int32(r.IntN(3)), Group: string(rune('a' + r.IntN(5))), //nolint:gosec // small
				}}, since: time.Unix(int64(r.IntN(10)), 0), arrival: arrivals, index: -1}
				n.join(item.Turn.Group)
				n.due = append(n.due, item)
				s.push(item)
			case 2, 3:
				want := n.pop()
				require.Same(t, want, s.pop(), "seed %d, step %d", seed, step)
				if want != nil {
					flying = append(flying, want)
				}
			default:
				if len(flying) > 0 && r.IntN(3) > 0 {
					i := r.IntN(len(flying))
					n.inFlight[flying[i].Turn.Group]--
					n.leave(flying[i].Turn.Group)
					s.endDelivery(flying[i])
					flying = slices.Delete(flying, i, i+1)
				} else if len(n.due) > 0 {
					i := r.IntN(len(n.due))
					item := n.due[i]
					n.due = slices.Delete(n.due, i, i+1)
					n.leave(item.Turn.Group)
					s.remove(item)
				}
			}
			require.Len(t, s.groups, len(n.turn), "seed %d, step %d: groups exist while they have tasks", seed, step)
		}
	}
}
