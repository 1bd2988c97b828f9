package eventtest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/event"
)

func scheduleName() *rapid.Generator[string] { return rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,20}`) }

func selections(t *rapid.T, label string, least int) []string {
	return filled(rapid.SliceOfN(name(), least, 3).Draw(t, label))
}

func runSpec(t *rapid.T) event.RunSpec {
	r := event.RunSpec{
		All: rapid.Bool().Draw(t, "all"), Exclude: selections(t, "exclude", 0),
		Upstream: rapid.Bool().Draw(t, "upstream"), Downstream: rapid.Bool().Draw(t, "downstream"),
		Only:            pick(t, "only", "", event.OnlyStale, event.OnlyMissing, event.OnlyFailed),
		AllowIncomplete: rapid.Bool().Draw(t, "incomplete"), Labels: filledMap(rapid.MapOfN(name(), text(), 0, 2).Draw(t, "labels")),
		MaxParallelism: count().Draw(t, "parallelism"), TimeoutSec: count().Draw(t, "timeout"),
	}
	if !r.All {
		r.Assets = selections(t, "assets", 1)
	}
	if r.Only == "" {
		r.Partitions = selections(t, "partitions", 0)
	}
	return r
}

// Schedule generates valid schedules.
func Schedule() *rapid.Generator[event.Schedule] {
	return rapid.Custom(func(t *rapid.T) event.Schedule {
		s := event.Schedule{
			Name: scheduleName().Draw(t, "name"), Timezone: optional(t, name(), "zone"),
			Gap:       pick(t, "gap", "", event.GapShift, event.GapSkip),
			Repeated:  pick(t, "repeated", "", event.RepeatedFirst, event.RepeatedLast, event.RepeatedBoth),
			JitterSec: rapid.Int64Min(0).Draw(t, "jitter"), Start: optional(t, Time(), "start"), End: optional(t, Time(), "end"),
			Run: runSpec(t), Overlap: pick(t, "overlap", append(event.Overlaps(), "")...),
			CatchUp:   pick(t, "catch up", "", event.CatchUpNone, event.CatchUpLatest),
			WindowSec: rapid.Int64Min(0).Draw(t, "window"), PauseAfterFailures: count().Draw(t, "failures"), SLASec: rapid.Int64Range(0, event.MaxDeadlineSec).Draw(t, "sla"), Paused: rapid.Bool().Draw(t, "paused"),
		}
		if rapid.Bool().Draw(t, "is cron") {
			s.Cron = "30 2 * * 1-5"
		} else {
			s.EverySec = rapid.Int64Min(60).Draw(t, "every")
		}
		return s
	})
}

func schedulesDefined(t *rapid.T) event.Payload {
	return &event.SchedulesDefined{
		DeployID: ULID().Draw(t, "deployment"), Part: count().Draw(t, "part"), Last: rapid.Bool().Draw(t, "last"),
		Set: filled(rapid.SliceOfN(Schedule(), 0, 3).Draw(t, "set")), Remove: filled(rapid.SliceOfN(scheduleName(), 0, 3).Draw(t, "remove")),
	}
}

// instants generates one or more times in ascending order.
func instants(t *rapid.T) []event.Time {
	times := rapid.SliceOfNDistinct(Time(), 1, 5, rapid.ID[event.Time]).Draw(t, "instants")
	slices.Sort(times)
	return times
}

func calendarAdvanced(t *rapid.T) event.Payload {
	p := &event.CalendarAdvanced{}
	for range rapid.IntRange(1, 3).Draw(t, "items") {
		times := instants(t)
		item := event.CalendarItem{
			Schedule: scheduleName().Draw(t, "schedule"), Version: hash(16).Draw(t, "version"),
			After: times[0], Missed: filled(times[1:]), Through: times[len(times)-1], Dropped: rapid.Int64Min(0).Draw(t, "dropped"),
			Calendar: optional(t, name(), "calendar"), Error: text().Draw(t, "error"),
		}
		if next := item.Through + 1; rapid.Bool().Draw(t, "has next") && next.Time().Year() < 9999 {
			item.Next, item.NextAt = next, next
		}
		p.Items = append(p.Items, item)
	}
	return p
}

func automationCommand(t *rapid.T) event.Payload {
	p := &event.AutomationCommand{
		CommandID: ULID().Draw(t, "command"), Target: event.TargetSchedule, Name: scheduleName().Draw(t, "schedule"),
		Verb:   pick(t, "verb", event.VerbPause, event.VerbResume, event.VerbTrigger, event.VerbBackfill),
		Reason: text().Draw(t, "reason"), CatchUp: rapid.Bool().Draw(t, "catch up"), Overlap: pick(t, "overlap", append(event.Overlaps(), "")...),
	}
	if rapid.Bool().Draw(t, "is request") {
		p.Target, p.Name, p.Verb = event.TargetRequest, name().Draw(t, "request"), event.VerbCancel
	}
	if rapid.Bool().Draw(t, "is backfill") {
		p.Target, p.Name = event.TargetBackfill, ULID().Draw(t, "backfill")
		p.Verb = pick(t, "verb", event.VerbPause, event.VerbResume, event.VerbCancel, event.VerbRetryFailed, event.VerbSet)
		p.Now = rapid.Bool().Draw(t, "now")
	}
	if p.Verb == event.VerbSet {
		p.MaxParallel = rapid.Int32Range(1, event.MaxParallelRuns).Draw(t, "max parallel")
	}
	if rapid.Bool().Draw(t, "is alert") {
		p.Now, p.MaxParallel = false, 0
		p.Target, p.Name, p.Verb = event.TargetAlert, scheduleName().Draw(t, "rule"), pick(t, "verb", event.VerbMute, event.VerbUnmute, event.VerbTest)
	}
	if p.Verb == event.VerbMute {
		p.Until = Time().Draw(t, "until")
	}
	if p.Verb == event.VerbBackfill {
		p.Instants = instants(t)
	}
	return p
}

// chunkPlan generates the plan of a chunk, or nil. The plan contains the positions of the planned partitions, and of
// the partitions that are done.
func chunkPlan(t *rapid.T) *event.ChunkPlan {
	if rapid.Bool().Draw(t, "no chunk") {
		return nil
	}
	var planned, done []int
	for n := range rapid.IntRange(0, 20).Draw(t, "partitions") {
		switch rapid.IntRange(0, 2).Draw(t, "partition") {
		case 0:
			planned = append(planned, n)
		case 1:
			done = append(done, n)
		}
	}
	return &event.ChunkPlan{Planned: event.FormatPositions(planned), Done: event.FormatPositions(done)}
}

func backfillCreated(t *rapid.T) event.Payload {
	p := &event.BackfillCreated{
		BackfillID: ULID().Draw(t, "backfill"), Assets: rapid.SliceOfN(AssetKey(), 1, 3).Draw(t, "assets"),
		Partitions: selections(t, "partitions", 0), Only: pick(t, "only", "", event.OnlyStale, event.OnlyMissing, event.OnlyFailed),
		ChunksRef: name().Draw(t, "document"), Sizes: rapid.SliceOfN(rapid.Int32Range(1, event.MaxChunkCells), 1, 5).Draw(t, "sizes"),
		Ordered: rapid.Bool().Draw(t, "ordered"), Order: pick(t, "order", "", event.OldestFirst, event.NewestFirst), MaxParallel: 1,
		StopAt: rapid.Int64Min(0).Draw(t, "stop"), Priority: rapid.Int32().Draw(t, "priority"), Pool: optional(t, name(), "pool"),
		Release: optional(t, hash(64), "release"), AllowIncomplete: rapid.Bool().Draw(t, "incomplete"),
	}
	if !p.Ordered {
		p.MaxParallel = rapid.Int32Range(1, event.MaxParallelRuns).Draw(t, "max parallel")
		for chunk := int32(1); int(chunk) < len(p.Sizes); chunk++ {
			if rapid.Bool().Draw(t, "starts a stage") {
				p.Stages = append(p.Stages, chunk)
			}
		}
	}
	return p
}
