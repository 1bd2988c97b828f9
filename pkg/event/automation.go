package event

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// Limits of requests and schedules.
const (
	MaxScheduleName  = 128  // bytes of the name of a schedule
	MaxSchedules     = 200  // schedules in one SchedulesDefined, and items in one CalendarAdvanced
	MaxSelections    = 200  // asset selections of a request; also, partition selections of a request
	MaxSelectionText = 4096 // bytes of one selection
	MaxInstants      = 1000 // instants in one event
	MaxRequestID     = 256
)

// RunSpec says what a request runs. An automator resolves it against the release that is current when the request is
// planned.
type RunSpec struct {
	// Assets and Exclude are selections: "clean/daily", "tag:gold". All selects every asset.
	Assets  []string `json:"assets,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
	All     bool     `json:"all,omitempty"`
	// Upstream adds everything that the selected assets read. Downstream adds everything that reads the selected
	// assets.
	Upstream   bool `json:"upstream,omitempty"`
	Downstream bool `json:"downstream,omitempty"`
	// Partitions are selections of partitions: "date=latest".
	Partitions []string `json:"partitions,omitempty"`
	// Only is a status: stale, missing or failed. It restricts the partitions that Partitions selects, and the upstream
	// partitions that they read, to partitions with this status. Without Partitions, it selects all partitions with this
	// status.
	Only            string            `json:"only,omitempty"`
	AllowIncomplete bool              `json:"allow_incomplete,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	MaxParallelism  int32             `json:"max_parallelism,omitempty"`
	TimeoutSec      int32             `json:"timeout_sec,omitempty"`
}

// Values of [RunSpec.Only].
const (
	OnlyStale   = "stale"
	OnlyMissing = "missing"
	OnlyFailed  = "failed"
)

// Overlap policies: what a tick does while a run of its schedule is live, or while a request of its schedule waits.
const (
	OverlapSkip           = "skip"            // the tick is skipped; the default
	OverlapBufferOne      = "buffer_one"      // one tick waits; others are skipped
	OverlapBufferAll      = "buffer_all"      // all ticks wait, in order
	OverlapCancelOther    = "cancel_other"    // the live run is cancelled, and the tick waits for its end
	OverlapTerminateOther = "terminate_other" // the live run is ended by force, and the tick starts immediately
	OverlapAllowAll       = "allow_all"       // the tick starts immediately
)

// Overlaps returns the overlap policies.
func Overlaps() []string {
	return []string{
		OverlapSkip, OverlapBufferOne, OverlapBufferAll, OverlapCancelOther, OverlapTerminateOther, OverlapAllowAll,
	}
}

// Catch-up policies: which of the instants that passed while Servo could not tick still become ticks.
const (
	CatchUpNone   = "none"   // the instants that are at most 15 minutes late; the default
	CatchUpLatest = "latest" // the newest instant within the window
	CatchUpAll    = "all"    // all instants within the window, oldest first
)

// Policies for local times that a clock change skips or repeats.
const (
	GapShift      = "shift" // a tick at the first instant after the gap; the default
	GapSkip       = "skip"  // no tick
	RepeatedFirst = "first" // the first of the two instants; the default
	RepeatedLast  = "last"
	RepeatedBoth  = "both"
)

// Schedule is the definition of a schedule in a release and in SchedulesDefined. Cron, EverySec, Timezone, Gap,
// Repeated, JitterSec, Start and End are for the calendar: the fold does not read them.
type Schedule struct {
	Name string `json:"name"`
	// Exactly one of Cron and EverySec is set. Cron is an expression of five fields. EverySec is the number of seconds
	// between two ticks, counted from Start, or from 1970 if there is no Start.
	Cron     string `json:"cron,omitempty"`
	EverySec int64  `json:"every_sec,omitempty"`
	Timezone string `json:"timezone,omitempty"` // an IANA zone; default "UTC"
	Gap      string `json:"gap,omitempty"`      // shift (default) or skip
	Repeated string `json:"repeated,omitempty"` // first (default), last or both
	// JitterSec delays a tick by less than this many seconds. The same instant always has the same delay.
	JitterSec int64 `json:"jitter_sec,omitempty"`
	// Start is the first possible instant of a tick. Every instant is before End.
	Start Time `json:"start,omitempty,omitzero"`
	End   Time `json:"end,omitempty,omitzero"`

	Run     RunSpec `json:"run"`
	Overlap string  `json:"overlap,omitempty"`  // default skip
	CatchUp string  `json:"catch_up,omitempty"` // default none
	// WindowSec is the maximum age, in seconds, of a missed instant that still becomes a tick; 0: no limit. It has no
	// effect with the policy "none".
	WindowSec int64 `json:"window_sec,omitempty"`
	// PauseAfterFailures is the number of consecutive failures after which the schedule is paused; 0:
	// never.
	PauseAfterFailures int32 `json:"pause_after_failures,omitempty"`
	// SLASec is how long a run may take from its trigger before an alert reports it; 0: no limit.
	SLASec int64 `json:"sla_sec,omitempty"`
	// Paused means that a new schedule starts paused.
	Paused bool `json:"paused,omitempty"`
}

// DefinitionVersion returns the version of a schedule's definition. The version depends on every field except
// Paused, which has no effect on an existing schedule.
func (s *Schedule) DefinitionVersion() string {
	with := *s
	with.Paused = false
	return shortHash(with)
}

// HashSchedules returns a hash of a release's schedules, or "" if there are none. The schedules must be sorted by
// name.
func HashSchedules(schedules []Schedule) string {
	if len(schedules) == 0 {
		return ""
	}
	return shortHash(schedules)
}

// shortHash returns the first digits of the SHA-256 of a value as JSON.
func shortHash(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("event: encode a value as JSON: %v", err)) // plain data
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:digitsOfCode/2])
}

// PlanHash returns the prefix of a plan's hash. Reports about the plan's tasks contain this prefix. The parameter ref
// is the object key of the plan. If ref contains no hash, PlanHash returns "".
func PlanHash(ref string) string {
	name := ref[strings.LastIndexByte(ref, '/')+1:]
	if len(name) < digitsOfCode || strings.Trim(name[:digitsOfCode], "0123456789abcdef") != "" {
		return ""
	}
	return name[:digitsOfCode]
}

// RunRequested is the command to run assets at a given time. The fold keeps the request until then.
type RunRequested struct {
	// CommandID is a ULID and makes the request unique: the id of the request is "at:" followed by the command id.
	CommandID string  `json:"command_id"`
	At        Time    `json:"at"`
	Run       RunSpec `json:"run"`
}

// RequestRefused reports that a request cannot be planned.
type RequestRefused struct {
	RequestID  string `json:"request_id"`
	Generation int32  `json:"generation"`
	// Release is the release on which the automator tried to plan the request; "": no release is deployed.
	Release string `json:"release,omitempty"`
	Error   Error  `json:"error"`
	// Chunk says which partitions of a backfill's chunk need no run; nil: the request is not for a chunk, or the
	// automator found no such partition.
	Chunk *ChunkPlan `json:"chunk,omitempty"`
}

// SchedulesDefined brings the schedules of a domain in line with its current release. It contains only the
// schedules that differ from those in the state.
type SchedulesDefined struct {
	// DeployID is the deployment that the writer saw as the current one.
	DeployID string `json:"deploy_id"`
	// Part is the number of this event among the events for one deployment, from 0. Last is set in the last of these
	// events.
	Part   int32      `json:"part"`
	Last   bool       `json:"last,omitempty"`
	Set    []Schedule `json:"set,omitempty"`
	Remove []string   `json:"remove,omitempty"`
}

// CalendarAdvanced tells the fold the next instants of schedules. The fold has no calendar.
type CalendarAdvanced struct {
	Items []CalendarItem `json:"items"`
}

// CalendarItem is a calendar's answer about one schedule.
type CalendarItem struct {
	Schedule string `json:"schedule"`
	// Version is the version of the definition that the automator read.
	Version string `json:"version"`
	// After is the cursor of the schedule when the automator read it. The item decides the instants after this cursor, up
	// to the time in Through. Missed contains those instants for which the catch-up policy may still create ticks, oldest
	// first. Dropped is the number of the others.
	After   Time   `json:"after,omitempty,omitzero"`
	Missed  []Time `json:"missed,omitempty"`
	Dropped int64  `json:"dropped,omitempty"`
	Through Time   `json:"through,omitempty,omitzero"`
	// Next is the first instant that is not due. NextAt is the time of its tick, including jitter. If both are absent,
	// the schedule has ended.
	Next   Time `json:"next,omitempty,omitzero"`
	NextAt Time `json:"next_at,omitempty,omitzero"`
	// Calendar is the version of the zone data.
	Calendar string `json:"calendar,omitempty"`
	// Error says why the calendar cannot compute the instants, for example because it does not know the zone.
	Error string `json:"error,omitempty"`
}

// Targets of an AutomationCommand.
const (
	TargetSchedule = "schedule"
	TargetRequest  = "request"
	TargetBackfill = "backfill"
	TargetAlert    = "alert"
)

// Verbs of an AutomationCommand.
const (
	VerbPause       = "pause"        // a schedule: no more ticks; a backfill: start no more chunks
	VerbResume      = "resume"       // a schedule: tick again; a backfill: start chunks again
	VerbTrigger     = "trigger"      // a schedule: tick now
	VerbBackfill    = "backfill"     // a schedule: create the ticks of past instants, one after the other
	VerbCancel      = "cancel"       // a request: end it before it becomes a run; a backfill: end it
	VerbRetryFailed = "retry_failed" // a backfill: repeat the partitions that failed or were skipped
	VerbSet         = "set"          // a backfill: change MaxParallel
	VerbMute        = "mute"         // an alert rule: report nothing until a time
	VerbUnmute      = "unmute"       // an alert rule: report again
	VerbTest        = "test"         // a channel of alerts: send a test message
)

// AutomationCommand is a person's command about a schedule, a request, a backfill or an alert.
type AutomationCommand struct {
	// CommandID makes the command unique. Among the commands that pause or resume the same schedule, the command with
	// the greatest id wins. The same holds for commands that mute or unmute the same rule, and for commands about the
	// same backfill.
	CommandID string `json:"command_id"`
	Target    string `json:"target"` // schedule, request, backfill or alert
	Name      string `json:"name"`   // the name of the schedule, the rule or the channel, or the id of the request or the backfill
	Verb      string `json:"verb"`
	Reason    string `json:"reason,omitempty"`
	// With the verb "resume", CatchUp applies the catch-up policy to the instants that passed during the pause.
	CatchUp bool `json:"catch_up,omitempty"`
	// Overlap is the overlap policy for the verb "trigger"; it replaces the policy of the schedule.
	Overlap string `json:"overlap,omitempty"`
	// Instants are the past instants for the verb "backfill", oldest first.
	Instants []Time `json:"instants,omitempty"`
	// With the verb "pause", Now makes the command cancel the running chunks of a backfill. Their unfinished partitions run
	// after the backfill is resumed.
	Now bool `json:"now,omitempty"`
	// With the verb "set", MaxParallel is the new limit on how many chunks of a backfill run at once.
	MaxParallel int32 `json:"max_parallel,omitempty"`
	// Until is when the effect of the verb "mute" ends.
	Until Time `json:"until,omitempty,omitzero"`
	// IfTag is the edit tag of the schedule or the backfill that the caller has seen. The command has no effect if
	// another command or a deployment has changed the schedule or backfill since. "": the command is unconditional.
	IfTag string `json:"if_tag,omitempty"`
	// CommandKey deduplicates the command. A second command with the same key and the same Fingerprint, a hash of the
	// request, changes nothing. A second command with another fingerprint is a conflict. "": no key.
	CommandKey  string `json:"command_key,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Key returns the natural key, a hash of the schedules and cursors of the items.
func (p *CalendarAdvanced) Key() string {
	var b strings.Builder
	for i := range p.Items {
		fmt.Fprintf(&b, "%s|%s|%d|%d;", p.Items[i].Schedule, p.Items[i].Version, p.Items[i].After, p.Items[i].Through)
	}
	sum := sha256.Sum256([]byte(b.String()))
	return "calendar:" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:26])
}

func (c *checker) runSpec(path string, r *RunSpec) {
	c.selections(path+".assets", r.Assets)
	c.selections(path+".exclude", r.Exclude)
	c.selections(path+".partitions", r.Partitions)
	if r.All == (len(r.Assets) > 0) {
		c.fail(path+".assets", "set either assets or all")
	}
	c.optionalOneOf(path+".only", r.Only, OnlyStale, OnlyMissing, OnlyFailed)
	if r.Only == OnlyFailed && len(r.Partitions) > 0 {
		c.fail(path+".only", "the value failed selects partitions itself: remove only or partitions")
	}
	c.count(path+".max_parallelism", int64(r.MaxParallelism))
	c.count(path+".timeout_sec", int64(r.TimeoutSec))
	c.labels(path+".labels", r.Labels)
}

func (c *checker) selections(path string, texts []string) {
	c.atMost(path+" (count)", int64(len(texts)), MaxSelections)
	for i, text := range texts {
		c.text(fmt.Sprintf("%s[%d]", path, i), text, MaxSelectionText)
		if text == "" {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "is empty")
		}
	}
}

func (c *checker) labels(path string, labels map[string]string) {
	c.atMost(path+" (count)", int64(len(labels)), MaxLabels)
	for key, value := range labels {
		c.name(path+" (a key)", key)
		c.text(fmt.Sprintf("%s[%.100q]", path, key), value, MaxLabelValue)
	}
}

// ValidScheduleName reports whether a text can name a schedule: lower-case letters, digits, "_" and
// "-", beginning with a letter or digit.
func ValidScheduleName(name string) bool {
	if name == "" || len(name) > MaxScheduleName || name[0] == '-' || name[0] == '_' {
		return false
	}
	for _, b := range []byte(name) {
		if (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '_' && b != '-' {
			return false
		}
	}
	return true
}

func (c *checker) scheduleName(path, name string) {
	if !ValidScheduleName(name) {
		c.fail(path, "%.140q does not name a schedule: expected 1 to %d of a-z, 0-9, _ and -", name, MaxScheduleName)
	}
}

// minEverySec is the minimum time between two ticks, in seconds.
const minEverySec = 60

// Validate returns the first error of a schedule.
func (s *Schedule) Validate() error {
	c := &checker{}
	c.schedule("schedule", s)
	if c.err != nil {
		return c.err
	}
	return nil
}

func (c *checker) schedule(path string, s *Schedule) {
	c.scheduleName(path+".name", s.Name)
	if (s.Cron == "") == (s.EverySec == 0) {
		c.fail(path+".cron", "set either cron or every_sec")
	}
	c.text(path+".cron", s.Cron, MaxName)
	if s.EverySec != 0 && s.EverySec < minEverySec {
		c.fail(path+".every_sec", "%d is less than %d", s.EverySec, minEverySec)
	}
	c.text(path+".timezone", s.Timezone, MaxName)
	c.optionalOneOf(path+".gap", s.Gap, GapShift, GapSkip)
	c.optionalOneOf(path+".repeated", s.Repeated, RepeatedFirst, RepeatedLast, RepeatedBoth)
	c.count(path+".jitter_sec", s.JitterSec)
	c.optionalTime(path+".start", s.Start)
	c.optionalTime(path+".end", s.End)
	c.runSpec(path+".run", &s.Run)
	c.optionalOneOf(path+".overlap", s.Overlap, Overlaps()...)
	c.optionalOneOf(path+".catch_up", s.CatchUp, CatchUpNone, CatchUpLatest, CatchUpAll)
	if s.CatchUp == CatchUpAll && s.Overlap != OverlapBufferAll && s.Overlap != OverlapAllowAll {
		c.fail(path+".catch_up", "the value all needs the overlap policy %s or %s: any other policy drops most ticks", OverlapBufferAll, OverlapAllowAll)
	}
	c.count(path+".window_sec", s.WindowSec)
	c.count(path+".pause_after_failures", int64(s.PauseAfterFailures))
	c.atMost(path+".sla_sec", s.SLASec, MaxDeadlineSec)
}

func (c *checker) runRequested(p *RunRequested) {
	c.ulid("payload.command_id", p.CommandID)
	c.time("payload.at", p.At)
	c.runSpec("payload.run", &p.Run)
}

func (c *checker) requestRefused(p *RequestRefused) {
	c.requestID("payload.request_id", p.RequestID)
	c.count("payload.generation", int64(p.Generation))
	if p.Release != "" {
		c.hex("payload.release", p.Release, digitsOfRelease)
	}
	c.failure("payload.error", &p.Error)
	c.chunkPlan("payload.chunk", p.Chunk)
}

func (c *checker) requestID(path, id string) {
	if id == "" {
		c.fail(path, "is empty")
	}
	c.text(path, id, MaxRequestID)
}

func (c *checker) schedulesDefined(p *SchedulesDefined) {
	c.ulid("payload.deploy_id", p.DeployID)
	c.count("payload.part", int64(p.Part))
	c.atMost("payload.set (count)", int64(len(p.Set)), MaxSchedules)
	for i := range p.Set {
		c.schedule(fmt.Sprintf("payload.set[%d]", i), &p.Set[i])
	}
	c.atMost("payload.remove (count)", int64(len(p.Remove)), MaxInstants)
	for i, name := range p.Remove {
		c.scheduleName(fmt.Sprintf("payload.remove[%d]", i), name)
	}
}

func (c *checker) calendarAdvanced(p *CalendarAdvanced) {
	if len(p.Items) == 0 || len(p.Items) > MaxSchedules {
		c.fail("payload.items (count)", "%d is not between 1 and %d", len(p.Items), MaxSchedules)
	}
	missed := 0
	for i := range p.Items {
		item, path := &p.Items[i], fmt.Sprintf("payload.items[%d]", i)
		c.scheduleName(path+".schedule", item.Schedule)
		c.hex(path+".version", item.Version, digitsOfCode)
		c.optionalTime(path+".after", item.After)
		c.instants(path+".missed", item.Missed)
		c.count(path+".dropped", item.Dropped)
		c.optionalTime(path+".through", item.Through)
		c.optionalTime(path+".next", item.Next)
		c.optionalTime(path+".next_at", item.NextAt)
		c.text(path+".calendar", item.Calendar, MaxName)
		c.text(path+".error", item.Error, MaxRef)
		switch {
		case (item.Next == 0) != (item.NextAt == 0):
			c.fail(path+".next_at", "set both next and next_at, or neither")
		case item.NextAt < item.Next:
			c.fail(path+".next_at", "is before next")
		case item.Through < item.After || item.Next != 0 && item.Next <= item.Through:
			c.fail(path+".through", `must not be earlier than "after", and must be earlier than "next"`)
		}
		if n := len(item.Missed); n > 0 && (item.Missed[0] <= item.After || item.Missed[n-1] > item.Through) {
			c.fail(path+".missed", `must be later than "after", and not later than "through"`)
		}
		missed += len(item.Missed)
	}
	c.atMost("payload.items (missed instants)", int64(missed), MaxInstants)
}

// instants validates times, which must be ascending.
func (c *checker) instants(path string, times []Time) {
	c.atMost(path+" (count)", int64(len(times)), MaxInstants)
	for i, t := range times {
		c.time(fmt.Sprintf("%s[%d]", path, i), t)
		if i > 0 && t <= times[i-1] {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "must be after the previous time in the list")
			return
		}
	}
}

// commandKey validates the key that deduplicates a command.
func (c *checker) commandKey(key, fingerprint string) {
	c.runKey("payload.command_key", key)
	c.text("payload.fingerprint", fingerprint, MaxName)
}

func (c *checker) automationCommand(p *AutomationCommand) {
	c.ulid("payload.command_id", p.CommandID)
	c.oneOf("payload.target", p.Target, TargetSchedule, TargetRequest, TargetBackfill, TargetAlert)
	c.optionalTime("payload.until", p.Until)
	c.text("payload.reason", p.Reason, MaxMessage)
	c.text("payload.if_tag", p.IfTag, MaxName)
	c.commandKey(p.CommandKey, p.Fingerprint)
	c.optionalOneOf("payload.overlap", p.Overlap, Overlaps()...)
	c.instants("payload.instants", p.Instants)
	switch p.Target {
	case TargetRequest:
		c.requestID("payload.name", p.Name)
		c.oneOf("payload.verb", p.Verb, VerbCancel)
	case TargetBackfill:
		c.ulid("payload.name", p.Name)
		c.oneOf("payload.verb", p.Verb, VerbPause, VerbResume, VerbCancel, VerbRetryFailed, VerbSet)
	case TargetAlert:
		c.scheduleName("payload.name", p.Name)
		c.oneOf("payload.verb", p.Verb, VerbMute, VerbUnmute, VerbTest)
	default:
		c.scheduleName("payload.name", p.Name)
		c.oneOf("payload.verb", p.Verb, VerbPause, VerbResume, VerbTrigger, VerbBackfill)
	}
	if p.MaxParallel < 0 || p.MaxParallel > MaxParallelRuns || (p.Verb == VerbSet) != (p.MaxParallel > 0) {
		c.fail("payload.max_parallel", "%d is not allowed: expected 1 to %d for the verb set, 0 for other verbs", p.MaxParallel, MaxParallelRuns)
	}
	if (p.Verb == VerbMute) != (p.Until != 0) {
		c.fail("payload.until", "is required for mute, and not allowed for other verbs")
	}
	if (p.Verb == VerbBackfill) != (len(p.Instants) > 0) {
		c.fail("payload.instants", "is required for backfill, and not allowed for other verbs")
	}
}
