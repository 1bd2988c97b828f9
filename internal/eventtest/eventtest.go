// Package eventtest generates valid events for property tests.
package eventtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Envelope generates valid events of every type, each in a group of its own.
func Envelope() *rapid.Generator[*event.Envelope] {
	return rapid.Custom(func(t *rapid.T) *event.Envelope {
		d := ids.Domain{
			Tenant:    rapid.StringMatching(`[a-z0-9-]{1,63}`).Draw(t, "tenant"),
			Workspace: rapid.StringMatching(`[a-z0-9-]{1,63}`).Draw(t, "workspace"),
		}
		return &event.Envelope{
			ID:            ULID().Draw(t, "id"),
			Time:          Time().Draw(t, "time"),
			Domain:        d,
			Source:        d.Source(),
			CorrelationID: optional(t, ULID(), "correlation"),
			CausationID:   optional(t, ULID(), "causation"),
			Actor:         optional(t, name(), "actor"),
			Payload:       Payload().Draw(t, "payload"),
		}
	})
}

// ULID generates ids.
func ULID() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var u ulid.ULID
		if err := u.SetTime(rapid.Uint64Range(0, 253402300799999).Draw(t, "ms")); err != nil {
			t.Fatalf("make a ULID: %v", err)
		}
		copy(u[6:], rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "entropy"))
		return u.String()
	})
}

// Time generates times from 1970 to 9999.
func Time() *rapid.Generator[event.Time] {
	last := event.At(time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC))
	return rapid.Map(rapid.Int64Range(1, int64(last)), func(n int64) event.Time { return event.Time(n) })
}

// AssetKey generates keys of assets.
func AssetKey() *rapid.Generator[string] {
	return rapid.StringMatching(`[a-z0-9_]{1,12}/[a-z0-9_]{1,12}`)
}

// Partition generates partitions with values that need escaping.
func Partition() *rapid.Generator[ids.Partition] {
	return rapid.Custom(func(t *rapid.T) ids.Partition {
		dims := rapid.MapOfN(rapid.StringMatching(`[a-z]{1,6}`), rapid.StringMatching(`[ -~é日]{0,8}`), 0, 3)
		return ids.Partition(dims.Draw(t, "dimensions"))
	})
}

// TaskKey generates keys of tasks.
func TaskKey() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		asset, err := ids.ParseAssetKey(AssetKey().Draw(t, "asset"))
		if err != nil {
			t.Fatalf("invalid asset key: %v", err)
		}
		return ids.TaskKey(asset, Partition().Draw(t, "partition"))
	})
}

func optional[T any](t *rapid.T, g *rapid.Generator[T], label string) T {
	var none T
	return rapid.OneOf(rapid.Just(none), g).Draw(t, label)
}

func name() *rapid.Generator[string] {
	return rapid.StringN(1, 20, event.MaxName)
}

func text() *rapid.Generator[string] { return rapid.StringN(0, 40, 200) }

func positive() *rapid.Generator[int32] { return rapid.Int32Min(1) }

func count() *rapid.Generator[int32] { return rapid.Int32Min(0) }

func pick(t *rapid.T, label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(t, label)
}

// Payload generates valid payloads of every type.
func Payload() *rapid.Generator[event.Payload] {
	return rapid.Custom(func(t *rapid.T) event.Payload {
		return PayloadLike(rapid.SampledFrom(event.Payloads()).Draw(t, "type")).Draw(t, "payload")
	})
}

// PayloadLike generates valid payloads of p's type.
func PayloadLike(p event.Payload) *rapid.Generator[event.Payload] {
	return rapid.Custom(func(t *rapid.T) event.Payload {
		switch p.(type) {
		case *event.RunTriggered:
			return runTriggered(t)
		case *event.PlanCreated:
			return planCreated(t)
		case *event.RunCancelRequested:
			return &event.RunCancelRequested{
				RunID: ULID().Draw(t, "run"), Reason: text().Draw(t, "reason"), Force: rapid.Bool().Draw(t, "force"),
			}
		case *event.LimitSet:
			return limitSet(t)
		case *event.ProjectDeployed:
			return projectDeployed(t)
		case *event.QuarantineResolved:
			return quarantineResolved(t)
		case *event.PartitionsChanged:
			return partitionsChanged(t)
		case *event.PartitionsMarked:
			return partitionsMarked(t)
		case *event.RunRequested:
			return &event.RunRequested{CommandID: ULID().Draw(t, "command"), At: Time().Draw(t, "at"), Run: runSpec(t)}
		case *event.RequestRefused:
			return &event.RequestRefused{
				RequestID: name().Draw(t, "request"), Generation: count().Draw(t, "generation"), Release: optional(t, hash(64), "release"), Error: failure(t), Chunk: chunkPlan(t),
			}
		case *event.SchedulesDefined:
			return schedulesDefined(t)
		case *event.CalendarAdvanced:
			return calendarAdvanced(t)
		case *event.AutomationCommand:
			return automationCommand(t)
		case *event.RevisionPinned:
			return revisionPinned(t)
		case *event.AssetsForgotten:
			return assetsForgotten(t)
		case *event.BackfillCreated:
			return backfillCreated(t)
		case *event.NotificationEnded:
			return notificationEnded(t)
		case *event.DeadlineJudged:
			return deadlineJudged(t)
		case *event.DispatchRequested, *event.DispatchEnqueued, *event.DispatchFailed:
			return dispatch(t, p)
		case *event.TimerRequested, *event.TimerEnqueued, *event.TimerFired:
			return timer(t, p)
		case *event.TaskStarted, *event.TaskHeartbeat, *event.TaskFinished:
			return worker(t, p)
		}
		panic(fmt.Sprintf("eventtest: no generator for %T", p))
	})
}

func runTriggered(t *rapid.T) event.Payload {
	return &event.RunTriggered{
		RunID:  ULID().Draw(t, "run"),
		PlanID: ULID().Draw(t, "plan"),
		Trigger: event.Trigger{
			Type: pick(t, "type", "manual", "cron", "sensor", "materialization", "webhook", "backfill", "retry"),

			UserID:                    optional(t, name(), "user"),
			ScheduleID:                optional(t, name(), "schedule"),
			TickID:                    optional(t, ULID(), "tick"),
			SensorID:                  optional(t, name(), "sensor"),
			WebhookID:                 optional(t, name(), "webhook"),
			BackfillID:                optional(t, name(), "backfill"),
			ParentRunID:               optional(t, ULID(), "parent"),
			UpstreamMaterializationID: optional(t, ULID(), "upstream"),
		},
		RootAssets:         filled(rapid.SliceOfN(AssetKey(), 0, 3).Draw(t, "roots")),
		RunKey:             optional(t, name(), "run key"),
		Fingerprint:        optional(t, name(), "fingerprint"),
		PartitionSelection: filled(rapid.SliceOfN(text(), 0, 3).Draw(t, "partitions")),
		MaxParallelism:     count().Draw(t, "parallelism"),
		TimeoutSec:         count().Draw(t, "timeout"),
		CancelGraceSec:     count().Draw(t, "grace"),
		Labels:             filledMap(rapid.MapOfN(name(), text(), 0, 3).Draw(t, "labels")),
		Release:            optional(t, hash(64), "release"),
		Chunk:              chunkPlan(t),
		RootRun:            optional(t, ULID(), "root run"),
		Vars:               filledMap(rapid.MapOfN(name(), text(), 0, 3).Draw(t, "vars")),
		RequestID:          optional(t, name(), "request"),
	}
}

// filled returns nil for an empty slice, as the decoder does. filledMap does the same for maps.
func filled[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func filledMap[V any](m map[string]V) map[string]V {
	if len(m) == 0 {
		return nil
	}
	return m
}

func planCreated(t *rapid.T) event.Payload {
	p := &event.PlanCreated{
		RunID:       ULID().Draw(t, "run"),
		PlanID:      ULID().Draw(t, "plan"),
		PlanRef:     name().Draw(t, "ref"),
		Fingerprint: optional(t, name(), "fingerprint"),

		ObservedSeq:  rapid.Int64Min(0).Draw(t, "observed seq"),
		ObservedTime: optional(t, Time(), "observed time"),

		ObservedThrough: optional(t, ULID(), "observed through"),
		ObservedLast:    optional(t, ULID(), "observed last"),
		ObservedEntries: optional(t, name(), "observed entries"),
	}
	keys := rapid.SliceOfNDistinct(TaskKey(), 0, 5, rapid.ID[string]).Draw(t, "keys")
	for i, key := range keys {
		p.Tasks = append(p.Tasks, task(t, key, keys[:i]))
	}
	p.TasksTotal = int32(len(p.Tasks))
	return p
}

func task(t *rapid.T, key string, upstreams []string) event.TaskDef {
	def := event.TaskDef{
		TaskKey:      key,
		Kind:         pick(t, "kind", "", event.KindTask, event.KindGroup),
		AssetKey:     optional(t, AssetKey(), "asset"),
		PartitionKey: Partition().Draw(t, "partition").Key(),
		TriggerRule:  pick(t, "rule", "", event.RuleAllSuccess, event.RuleNoneFailed, event.RuleAllDone),
		WorkerQueue:  optional(t, name(), "queue"),
		Pool:         optional(t, name(), "pool"),
		Priority:     rapid.Int32().Draw(t, "priority"),
		Output:       pick(t, "output", "", event.OutputNone),
		Code:         optional(t, hash(16), "code"),
		Checks:       names(t, "checks"), ErrorChecks: names(t, "error checks"),
		RequireQuality: filled(rapid.SliceOfN(AssetKey(), 0, 2).Draw(t, "require quality")),

		MaxAttempts:             count().Draw(t, "attempts"),
		RetryInitialDelayMS:     rapid.Int64Min(0).Draw(t, "initial"),
		RetryMaxDelayMS:         rapid.Int64Min(0).Draw(t, "max"),
		RetryMultiplierPermille: rapid.Int32Range(0, 10_000).Draw(t, "multiplier"),
		RetryJitterPermille:     rapid.Int32Range(0, 1000).Draw(t, "jitter"),
		RetryUserErrors:         rapid.Bool().Draw(t, "user errors"),
		RetryOn:                 filled(rapid.SliceOfN(retryRule(), 0, 2).Draw(t, "retry on")),
		RetryNever:              filled(rapid.SliceOfN(retryRule(), 0, 2).Draw(t, "retry never")),
		TimeoutSec:              count().Draw(t, "timeout"),
		HeartbeatTimeoutSec:     count().Draw(t, "heartbeat"),
	}
	for _, upstream := range upstreams {
		if rapid.Bool().Draw(t, "edge") {
			def.DependsOn = append(def.DependsOn, upstream)
		}
	}
	return def
}

// names generates a short list of names, or nil.
func names(t *rapid.T, label string) (list []string) {
	for range rapid.IntRange(0, 2).Draw(t, label) {
		list = append(list, name().Draw(t, "name"))
	}
	return list
}

func limitSet(t *rapid.T) event.Payload {
	p := &event.LimitSet{CommandID: ULID().Draw(t, "command"), Scope: event.ScopeWorkspace, Slots: count().Draw(t, "slots")}
	if rapid.Bool().Draw(t, "pool") {
		p.Scope, p.Name = event.ScopePool, name().Draw(t, "name")
	}
	p.Remove = rapid.Bool().Draw(t, "remove")
	return p
}

// hash generates hashes with the given number of hexadecimal digits.
func hash(digits int) *rapid.Generator[string] {
	return rapid.StringMatching(fmt.Sprintf(`[0-9a-f]{%d}`, digits))
}

func projectDeployed(t *rapid.T) event.Payload {
	p := &event.ProjectDeployed{
		DeployID: ULID().Draw(t, "deployment"), Release: hash(64).Draw(t, "release"), Expects: optional(t, hash(64), "expects"),
		Force: rapid.Bool().Draw(t, "force"), Kind: pick(t, "kind", event.DeployRelease, event.DeployRollback, event.DeployLocal),
		Environment: optional(t, name(), "environment"), Message: text().Draw(t, "message"),
		Changes:   event.Changes{Added: count().Draw(t, "added"), Removed: count().Draw(t, "removed"), Changed: count().Draw(t, "changed")},
		Schedules: optional(t, hash(16), "schedules"), Alerts: alertRules(t), Watched: watched(t),
	}
	if rapid.Bool().Draw(t, "has git") {
		p.Git = &event.Git{
			Commit: optional(t, hash(40), "commit"), Branch: optional(t, name(), "branch"), Dirty: rapid.Bool().Draw(t, "dirty"),
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "accepted") {
		p.Accept = append(p.Accept, event.AcceptedCode{
			Asset: AssetKey().Draw(t, "asset"), Code: hash(16).Draw(t, "code"),
			Accepts: filled(rapid.SliceOfN(hash(16), 0, 3).Draw(t, "accepts")),
		})
	}
	return p
}

func quarantineResolved(t *rapid.T) event.Payload {
	return &event.QuarantineResolved{
		CommandID: ULID().Draw(t, "command"), Asset: AssetKey().Draw(t, "asset"), Partition: Partition().Draw(t, "partition").Key(),
		MaterializationID: ULID().Draw(t, "materialization"), Decision: pick(t, "decision", event.DecisionApprove, event.DecisionReject),
		Reason: text().Draw(t, "reason"),
	}
}

func partitionsChanged(t *rapid.T) event.Payload {
	p := &event.PartitionsChanged{CommandID: ULID().Draw(t, "command"), KeySet: rapid.StringMatching(`[a-z][a-z0-9_]{0,62}`).Draw(t, "set")}
	keys := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zé]{1,20}`), 1, 5, rapid.ID[string]).Draw(t, "keys")
	n := rapid.IntRange(0, len(keys)).Draw(t, "added")
	p.Add, p.Remove = filled(keys[:n:n]), filled(keys[n:])
	return p
}

func partitionsMarked(t *rapid.T) event.Payload {
	p := &event.PartitionsMarked{
		CommandID: ULID().Draw(t, "command"), Asset: AssetKey().Draw(t, "asset"), Mark: pick(t, "mark", event.MarkStale, event.MarkFresh, event.MarkMissing),
		ObservedSeq: rapid.Int64Range(0, 1<<40).Draw(t, "observed"), Reason: text().Draw(t, "reason"),
	}
	for range rapid.IntRange(1, 3).Draw(t, "partitions") {
		p.Partitions = append(p.Partitions, event.MarkedPartition{
			Partition: Partition().Draw(t, "partition").Key(), MaterializationID: ULID().Draw(t, "materialization"),
			RunID: optional(t, ULID(), "run"),
		})
	}
	return p
}

func measured(t *rapid.T) *int64 {
	if rapid.Bool().Draw(t, "is measured") {
		return nil
	}
	return new(rapid.Int64().Draw(t, "measured"))
}

func revisionPinned(t *rapid.T) event.Payload {
	return &event.RevisionPinned{
		CommandID: ULID().Draw(t, "command"), Revision: rapid.Int64Range(1, 1<<40).Draw(t, "revision"), Until: Time().Draw(t, "until"),
		Reason: text().Draw(t, "reason"),
	}
}

func assetsForgotten(t *rapid.T) event.Payload {
	assets := rapid.SliceOfNDistinct(AssetKey(), 1, 3, rapid.ID[string]).Draw(t, "assets")
	slices.Sort(assets)
	return &event.AssetsForgotten{
		CommandID: ULID().Draw(t, "command"), Assets: assets, Release: optional(t, hash(64), "release"), Reason: text().Draw(t, "reason"),
	}
}

func failure(t *rapid.T) event.Error {
	return event.Error{
		Code:      optional(t, name(), "code"),
		Category:  optional(t, name(), "category"),
		Message:   text().Draw(t, "message"),
		Retryable: rapid.Bool().Draw(t, "retryable"),

		Details:         text().Draw(t, "details"),
		SuggestedAction: text().Draw(t, "action"),
		RetryAfterMS:    rapid.Int64Range(0, event.MaxRetryAfterMS).Draw(t, "retry after"),
	}
}

func retryRule() *rapid.Generator[string] {
	return rapid.SampledFrom(append(event.Categories(), "EXIT_STATUS", "OUT_OF_MEMORY", "X_MINE"))
}

func dispatch(t *rapid.T, p event.Payload) event.Payload {
	run, key, attempt := ULID().Draw(t, "run"), TaskKey().Draw(t, "task"), positive().Draw(t, "attempt")
	id, generation := ids.DispatchID(run, key, attempt), count().Draw(t, "generation")
	switch p.(type) {
	case *event.DispatchRequested:
		return &event.DispatchRequested{
			RunID: run, TaskKey: key, Attempt: attempt, AttemptID: ULID().Draw(t, "attempt id"),
			DispatchID: id, Generation: generation, WorkerQueue: optional(t, name(), "queue"),
		}
	case *event.DispatchEnqueued:
		return &event.DispatchEnqueued{
			DispatchID: id, RunID: run, TaskKey: key, Attempt: attempt, Generation: generation,
			QueueTaskName: rapid.StringMatching(`d_[a-z2-7]{26}`).Draw(t, "queue task"),
			Deduplicated:  rapid.Bool().Draw(t, "deduplicated"),
		}
	default:
		return &event.DispatchFailed{
			DispatchID: id, RunID: run, TaskKey: key, Attempt: attempt, Generation: generation, Error: failure(t),
		}
	}
}

func timer(t *rapid.T, p event.Payload) event.Payload {
	id, generation := "timer:"+name().Draw(t, "id"), count().Draw(t, "generation")
	switch p.(type) {
	case *event.TimerRequested:
		var data json.RawMessage
		if values := rapid.MapOfN(rapid.String(), rapid.Int(), 0, 3).Draw(t, "data"); len(values) > 0 {
			raw, err := json.Marshal(values)
			if err != nil {
				t.Fatalf("encode the payload: %v", err)
			}
			data = raw
		}
		return &event.TimerRequested{
			TimerID: id, Generation: generation, FireAt: Time().Draw(t, "fire at"), Payload: data,
			TimerType: pick(t, "type", event.TimerRetry, event.TimerLiveness),
		}
	case *event.TimerEnqueued:
		return &event.TimerEnqueued{
			TimerID: id, Generation: generation, HopAt: optional(t, Time(), "hop at"),
			QueueTaskName: rapid.StringMatching(`t_[a-z2-7]{26}`).Draw(t, "queue task"),
		}
	default:
		return &event.TimerFired{
			TimerID: id, Generation: generation, FiredAt: Time().Draw(t, "fired at"),
			Observed: event.Observed{CaughtUpAt: optional(t, Time(), "caught up"), Revision: rapid.Int64Min(0).Draw(t, "revision")},
		}
	}
}

func worker(t *rapid.T, p event.Payload) event.Payload {
	ref := event.AttemptRef{
		RunID: ULID().Draw(t, "run"), TaskKey: TaskKey().Draw(t, "task"), Attempt: positive().Draw(t, "attempt"),
		AttemptID: ULID().Draw(t, "attempt id"), WorkerID: optional(t, name(), "worker"),
	}
	ref.GrantedAttempts = rapid.Int32Range(0, min(event.MaxGrantedAttempts, ref.Attempt-1)).Draw(t, "granted")
	switch p.(type) {
	case *event.TaskStarted:
		return &event.TaskStarted{AttemptRef: ref, Plan: optional(t, hash(16), "plan"), StartedAt: Time().Draw(t, "started")}
	case *event.TaskHeartbeat:
		return &event.TaskHeartbeat{
			AttemptRef: ref, HeartbeatAt: Time().Draw(t, "heartbeat"),
			Progress: rapid.Int32Range(0, 100).Draw(t, "progress"), Message: text().Draw(t, "message"),
		}
	default:
		return finished(t, ref)
	}
}

func finished(t *rapid.T, ref event.AttemptRef) event.Payload {
	p := &event.TaskFinished{
		AttemptRef: ref, Plan: optional(t, hash(16), "plan"),
		Outcome: rapid.SampledFrom([]event.Outcome{
			event.Succeeded, event.Failed, event.Skipped, event.Cancelled, event.TimedOut,
		}).Draw(t, "outcome"),
		MaterializationID: optional(t, ULID(), "materialization"),
		Log:               text().Draw(t, "log"),
		Metrics:           filledMap(rapid.MapOfN(name(), rapid.Int64(), 0, 3).Draw(t, "metrics")),
		StartedAt:         optional(t, Time(), "started"),
		CompletedAt:       optional(t, Time(), "completed"),
	}
	if rapid.Bool().Draw(t, "has an error") {
		e := failure(t)
		p.Error = &e
	}
	if rapid.Bool().Draw(t, "has an output") {
		p.Output = &event.Output{
			URI: name().Draw(t, "uri"), RowCount: rapid.Int64Min(0).Draw(t, "rows"),
			ByteSize: rapid.Int64Min(0).Draw(t, "bytes"), SchemaHash: optional(t, name(), "schema"),
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "checks") {
		p.CheckResults = append(p.CheckResults, event.CheckResult{
			Name: name().Draw(t, "name"), Passed: rapid.Bool().Draw(t, "passed"),
			Severity: optional(t, name(), "severity"), Message: text().Draw(t, "message"), Phase: optional(t, name(), "phase"),
			Broken: rapid.Bool().Draw(t, "broken"), Failing: rapid.Int64Min(0).Draw(t, "failing"), Actual: optional(t, name(), "actual"),
			Expected: optional(t, name(), "expected"), Sample: optional(t, name(), "sample"),
			Measured: measured(t), Season: optional(t, name(), "season"), Metric: optional(t, name(), "metric"),
		})
	}
	return p
}
