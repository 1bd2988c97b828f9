package localqueue

import (
	"cmp"
	"container/heap"
)

// turns contains the due tasks of a lane, by group, and chooses the next task by these rules:
//
//  1. A task of a greater priority goes before all tasks of smaller priorities.
//  2. Among groups whose first tasks have equal priorities, the group with the fewest deliveries in flight is next.
//     Among groups with equally many deliveries in flight, the group that has waited longest since its last turn is
//     next. So a group with a thousand tasks does not delay a group with one task, and groups whose tasks take equally
//     long get equal shares of the lane.
//  3. In a group, older tasks go first.
//
// In rule 2, a new group comes before the group that had the last turn, and after all other groups that are already
// waiting. So new groups cannot delay a waiting group forever.
type turns struct {
	groups map[string]*group
	heads  heads  // the groups with due tasks
	clock  uint64 // advances by 2 with each turn
}

// group contains the due tasks with the same [queue.Turn] group. It exists while it has due tasks or deliveries in
// flight.
type group struct {
	name     string
	due      inOrder
	inFlight int
	// turn says how long the group has waited: a smaller number means a longer wait. At a turn of the group, turn becomes
	// turns.clock + 1. Before the first turn of the group, it is the value of turns.clock at the creation of the group.
	turn  uint64
	index int // position in turns.heads; -1 while the group has no due tasks
}

func newTurns() turns { return turns{groups: map[string]*group{}} }

// push adds a due task.
func (s *turns) push(t *task) {
	g := s.groups[t.Turn.Group]
	if g == nil {
		g = &group{name: t.Turn.Group, turn: s.clock, index: -1}
		s.groups[g.name] = g
	}
	t.group = g
	heap.Push(&g.due, t)
	s.refresh(g)
}

// pop removes and returns the next task, or nil. Its delivery counts as in flight until the caller calls
// the method endDelivery.
func (s *turns) pop() *task {
	if len(s.heads) == 0 {
		return nil
	}
	g := s.heads[0]
	t, _ := heap.Pop(&g.due).(*task)
	g.inFlight++
	s.clock += 2
	g.turn = s.clock + 1 // greater than the turn of a group that is created during this turn
	s.refresh(g)
	return t
}

// endDelivery records that the delivery of a task has ended.
func (s *turns) endDelivery(t *task) {
	g := t.group
	t.group = nil
	g.inFlight--
	s.refresh(g)
}

// remove removes a due task.
func (s *turns) remove(t *task) {
	g := t.group
	t.group = nil
	heap.Remove(&g.due, t.index)
	s.refresh(g)
}

// refresh updates the position of a group after a change. It removes the group if it has neither due tasks nor
// deliveries in flight.
func (s *turns) refresh(g *group) {
	switch waits := g.due.Len() > 0; {
	case waits && g.index >= 0:
		heap.Fix(&s.heads, g.index)
	case waits:
		heap.Push(&s.heads, g)
	default:
		if g.index >= 0 {
			heap.Remove(&s.heads, g.index)
		}
		if g.inFlight == 0 {
			delete(s.groups, g.name)
		}
	}
}

// heads is a heap of groups with due tasks: the next one first.
type heads []*group

// Len implements [heap.Interface].
func (h heads) Len() int { return len(h) }

// Less implements [heap.Interface].
func (h heads) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(
		cmp.Compare(b.due.positions[0].Turn.Priority, a.due.positions[0].Turn.Priority), cmp.Compare(a.inFlight, b.inFlight),
		cmp.Compare(a.turn, b.turn), compareAge(a.due.positions[0], b.due.positions[0]),
	) < 0
}

// Swap implements [heap.Interface].
func (h heads) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements [heap.Interface].
func (h *heads) Push(x any) {
	g, _ := x.(*group)
	g.index = len(*h)
	*h = append(*h, g)
}

// Pop implements [heap.Interface].
func (h *heads) Pop() any {
	last := len(*h) - 1
	g := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	g.index = -1
	return g
}

// inOrder is a heap of the due tasks of a group: the greatest priority first, then the oldest.
type inOrder struct{ positions }

// Less implements [heap.Interface].
func (s inOrder) Less(i, j int) bool {
	a, b := s.positions[i], s.positions[j]
	return cmp.Or(cmp.Compare(b.Turn.Priority, a.Turn.Priority), compareAge(a, b)) < 0
}

// compareAge orders tasks by age, the oldest first.
func compareAge(a, b *task) int {
	return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.arrival, b.arrival))
}

// schedule is a heap of tasks that are not due yet: the earliest first, then in the order of arrival.
type schedule struct{ positions }

// Less implements [heap.Interface].
func (s schedule) Less(i, j int) bool {
	a, b := s.positions[i], s.positions[j]
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.arrival, b.arrival)) < 0
}

// positions is a list of tasks. Each task records its index in the list.
type positions []*task

// Len implements [heap.Interface].
func (s positions) Len() int { return len(s) }

// Swap implements [heap.Interface].
func (s positions) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements [heap.Interface].
func (s *positions) Push(x any) {
	t, _ := x.(*task)
	t.index = len(*s)
	*s = append(*s, t)
}

// Pop implements [heap.Interface].
func (s *positions) Pop() any {
	last := len(*s) - 1
	t := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	t.index = -1
	return t
}
