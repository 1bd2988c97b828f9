package calendar

import "github.com/servo-orchestration/servo/pkg/event"

// Compile compiles a schedule that a release declares.
func Compile(s *event.Schedule) (*Schedule, error) {
	return Spec{
		Cron: s.Cron, EverySec: s.EverySec, Timezone: s.Timezone, DST: DST{Gap: s.Gap, Overlap: s.Repeated},
		Start: s.Start.Time(), End: s.End.Time(), JitterSec: s.JitterSec,
	}.Compile()
}
