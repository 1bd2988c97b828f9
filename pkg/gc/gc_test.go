package gc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

var (
	acme  = ids.Domain{Tenant: "acme", Workspace: "main"}
	asset = ids.AssetKey{Namespace: "raw", Name: "events"}
)

// handClock is a clock that only the test advances.
type handClock struct{ now time.Time }

func (c *handClock) Now() time.Time                                   { return c.now }
func (c *handClock) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// fixture is a domain with a published state.
type fixture struct {
	t     *testing.T
	clock *handClock
	blobs *memblob.Store
	ids   *ids.Source
	cfg   gc.Config
	rows  state.Rows

	newest *manifest.Manifest
	seq    int64
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, clock: &handClock{now.Time().Add(-100 * day)}}
	f.blobs = memblob.New(memblob.Options{Now: f.clock.Now})
	f.ids = ids.NewSource(f.clock.Now, nil)
	f.cfg = gc.Config{
		Handle: domain.Open(domain.Handle{Domain: acme, Store: f.blobs, IDs: f.ids, Clock: f.clock}),
	}
	return f
}

func (f *fixture) put(key string, data []byte) {
	f.t.Helper()
	_, err := f.blobs.Put(f.t.Context(), key, data)
	require.NoError(f.t, err)
}

func (f *fixture) meta() state.Meta {
	f.seq++
	return state.Meta{Tenant: acme.Tenant, Workspace: acme.Workspace, Version: f.ids.New(), Seq: f.seq}
}

// run adds a run of one task to the state, with the files of its executions. If the task succeeded, the first execution
// is the winner.
func (f *fixture) run(run state.RunState, task state.TaskState, executions ...string) (runID, uri string) {
	f.t.Helper()
	runID = f.ids.New()
	key := asset.String()
	m := ids.MaterializationID(acme, runID, key)
	for _, nonce := range executions {
		f.put(contract.ExecutionPrefix(acme, asset, "", m, runID, nonce)+"data.parquet", []byte("rows of "+nonce))
	}
	f.put(contract.LogKey(acme, runID, key, 1, runID), []byte("printed"))
	state.Set(&f.rows, append(state.List[state.Run](&f.rows), &state.Run{RunID: runID, State: run, CreatedAt: event.At(f.clock.now), Meta: f.meta()}))
	row := &state.Task{RunID: runID, TaskKey: key, AssetKey: key, State: task, Kind: event.KindTask, Meta: f.meta()}
	if task == state.TaskSucceeded {
		uri = contract.ExecutionPrefix(acme, asset, "", m, runID, executions[0])
		data, err := json.Marshal(contract.CommitMarker{MaterializationID: m, AttemptID: runID, Nonce: executions[0], URI: uri, Files: []contract.CommitMarkerFile{}})
		require.NoError(f.t, err)
		f.put(contract.CommitMarkerKeyOf(uri), data)
		row.MaterializationID, row.OutputURI, row.CompletedAt = m, uri, event.At(f.clock.now)
		state.Set(&f.rows, []*state.Partition{{
			AssetKey: key, Status: state.Materialized, MaterializationID: m, MaterializedAt: row.CompletedAt, RunID: runID, TaskKey: key,
			OutputURI: uri, Meta: f.meta(),
		}})
	}
	state.Set(&f.rows, append(state.List[state.Task](&f.rows), row))
	return runID, uri
}

// publish publishes the rows as a delta of the newest revision, and records that the whole ledger is folded.
func (f *fixture) publish() {
	f.t.Helper()
	m := f.newest
	if m == nil {
		var err error
		m, err = f.cfg.Manifests.NewTimeline(f.t.Context(), "test")
		require.NoError(f.t, err)
	} else {
		m = m.Successor("test")
	}
	m.FoldSeq, m.PublishedAt = f.seq, event.At(f.clock.now)
	m.Watermarks.CompleteThrough = ids.AtTime(f.clock.now)
	encoded, err := f.cfg.Codec.Encode(&f.rows)
	require.NoError(f.t, err)
	delta := manifest.Delta{ID: f.ids.New(), Revision: m.Revision}
	for _, file := range encoded {
		key := manifest.StateKey(acme, file.Table, manifest.TierL0, delta.ID)
		f.put(key, file.Data)
		delta.Files = append(delta.Files, manifest.File{
			Table: file.Table, Key: key, Size: int64(len(file.Data)), Rows: file.Rows, CRC32C: blob.CRC32C(file.Data), MinRun: file.MinRun, MaxRun: file.MaxRun,
		})
	}
	m.L0 = []manifest.Delta{delta}
	m.L0Count = 1
	require.NoError(f.t, f.cfg.Manifests.Publish(f.t.Context(), m))
	f.newest = m
}

// pin copies a revision, as the command that pins revisions does.
func (f *fixture) pin(revision int64) {
	f.t.Helper()
	_, err := f.cfg.Manifests.Pin(f.t.Context(), revision)
	require.NoError(f.t, err)
}

// left returns the keys of the objects that are left below assets/ and logs/.
func (f *fixture) left() []string {
	f.t.Helper()
	var keys []string
	for o, err := range f.blobs.List(f.t.Context(), blob.ListOptions{}) {
		require.NoError(f.t, err)
		if strings.HasPrefix(o.Key, "assets/") || strings.HasPrefix(o.Key, "logs/") {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

func (f *fixture) collect(opts gc.Options) gc.Report {
	f.t.Helper()
	report, err := gc.Run(f.t.Context(), f.cfg, opts)
	require.NoError(f.t, err)
	return report
}

func TestRunCollectsGarbage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, first := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	failed, _ := f.run(state.RunFailed, state.TaskFailed, "b")
	f.put(contract.LogPartKey(contract.LogKey(acme, failed, asset.String(), 1, failed), "n", 1), []byte("part"))
	f.clock.now = f.clock.now.Add(20 * day)
	_, second := f.run(state.RunSucceeded, state.TaskSucceeded, "c", "d")
	f.publish()
	f.clock.now = f.clock.now.Add(60 * day)
	running, _ := f.run(state.RunRunning, state.TaskRunning, "e")
	f.clock.now = f.clock.now.Add(5 * day)
	f.publish()

	before := f.left()
	dry := f.collect(gc.Options{DryRun: true})
	require.Equal(t, before, f.left(), "a dry run deletes nothing")
	report := f.collect(gc.Options{})
	require.Equal(t, dry.Counts, report.Counts, "a dry run predicts the deletions")
	require.Equal(t, []gc.Count{
		{Asset: "raw/events", Reason: gc.Lost, Versions: 2, Files: 2, Bytes: 2 * int64(len("rows of b"))},
		{Asset: "raw/events", Reason: gc.Superseded, Versions: 1, Files: 2, Bytes: report.Counts[1].Bytes},
	}, report.Counts)
	require.Empty(t, report.Items)
	require.Len(t, dry.Items, 3)
	for _, item := range dry.Items {
		require.Equal(t, "raw/events", item.Asset)
		require.True(t, ids.Valid(item.Version))
		require.NotZero(t, item.StoredAt)
		require.Equal(t, item.Reason == gc.Superseded, strings.Contains(first, item.Version), "the superseded version is the first one")
	}
	left := f.left()
	require.NotContains(t, left, contract.CommitMarkerKeyOf(first))
	require.NotContains(t, left, first+"data.parquet")
	require.Contains(t, left, contract.CommitMarkerKeyOf(second))
	require.Contains(t, left, second+"data.parquet")
	require.NotContains(t, left, strings.Replace(second, "-c/", "-d/", 1)+"data.parquet", "files of the execution that lost")
	require.True(t, slices.ContainsFunc(left, func(key string) bool { return strings.Contains(key, "-e/data.parquet") }), "the run is live")
	require.Empty(t, f.collect(gc.Options{}).Counts, "nothing is left to do")

	f.clock.now = f.clock.now.Add(10 * day)
	f.publish()
	logs := f.collect(gc.Options{})
	require.Equal(t, []gc.Count{{Reason: gc.Log, Files: 3, Bytes: 18}}, logs.Counts, "the logs of the first two runs, and the part of one, are 95 days old")
	require.NotContains(t, f.left(), contract.LogKey(acme, failed, asset.String(), 1, failed))
	require.Contains(t, f.left(), contract.LogKey(acme, running, asset.String(), 1, running))
}

// TestTenRunsLeaveThreeVersions runs one asset ten times. An hour later its outputs take at most three times
// the space of one, and a dry run has predicted the deleted bytes.
func TestTenRunsLeaveThreeVersions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 10 {
		f.run(state.RunSucceeded, state.TaskSucceeded, "a")
		f.clock.now = f.clock.now.Add(time.Minute)
	}
	f.publish()
	stored := func() (size int64) {
		for o, err := range f.blobs.List(t.Context(), blob.ListOptions{Prefix: "assets/"}) {
			require.NoError(t, err)
			size += o.Size
		}
		return size
	}
	require.Empty(t, f.collect(gc.Options{}).Counts, "superseded outputs stay for an hour")
	all := stored()
	f.clock.now = f.clock.now.Add(time.Hour)
	f.publish()
	dry := f.collect(gc.Options{DryRun: true})
	require.Equal(t, all, stored())
	report := f.collect(gc.Options{})
	require.Equal(t, dry.Counts, report.Counts)
	require.Len(t, report.Counts, 1)
	require.Equal(t, all-stored(), report.Counts[0].Bytes, "a dry run predicts the bytes")
	require.Equal(t, all*3/10, stored())
}

// candidate adds an output in quarantine. Its run has ended.
func (f *fixture) candidate(s state.CandidateState) (uri string) {
	f.t.Helper()
	runID, _ := f.run(state.RunFailed, state.TaskFailed, "c")
	m := ids.MaterializationID(acme, runID, asset.String())
	uri = contract.ExecutionPrefix(acme, asset, "", m, runID, "c")
	data, err := json.Marshal(contract.CommitMarker{MaterializationID: m, AttemptID: runID, Nonce: "c", URI: uri, Files: []contract.CommitMarkerFile{}})
	require.NoError(f.t, err)
	f.put(contract.QuarantineMarkerKeyOf(uri), data)
	row := &state.Candidate{AssetKey: asset.String(), MaterializationID: m, State: s, RunID: runID, TaskKey: asset.String(), OutputURI: uri, FailedChecks: "[]", Meta: f.meta()}
	if s != state.CandidatePending {
		row.ResolvedAt = event.At(f.clock.now)
	}
	state.Set(&f.rows, append(state.List[state.Candidate](&f.rows), row))
	if s == state.CandidateApproved {
		state.Set(&f.rows, []*state.Partition{{
			AssetKey: asset.String(), Status: state.Materialized, MaterializationID: m, MaterializedAt: event.At(f.clock.now), RunID: runID,
			TaskKey: asset.String(), OutputURI: uri, Quality: state.Approved, Meta: f.meta(),
		}})
	}
	return uri
}

// TestI23CollectorKeepsCandidates collects outputs in quarantine, which belong to failed tasks. An output that waits
// for a decision stays. An approved output is a version of its partition.
func TestI23CollectorKeepsCandidates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rejected, pending := f.candidate(state.CandidateRejected), f.candidate(state.CandidatePending)
	approved := f.candidate(state.CandidateApproved)
	f.publish()
	f.clock.now = f.clock.now.Add(2 * day)
	f.publish()
	both := func(uri string) []string { return []string{contract.QuarantineMarkerKeyOf(uri), uri + "data.parquet"} }
	f.collect(gc.Options{})
	require.Subset(t, f.left(), slices.Concat(both(pending), both(approved)))
	for _, key := range both(rejected) {
		require.NotContains(t, f.left(), key)
	}
	_, later := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.publish()
	f.clock.now = f.clock.now.Add(3 * day)
	f.publish()
	f.collect(gc.Options{})
	require.Subset(t, f.left(), both(approved), "a superseded version is kept for a while")
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	f.collect(gc.Options{})
	require.Contains(t, f.left(), contract.CommitMarkerKeyOf(later))
	require.Subset(t, f.left(), both(pending))
	for _, key := range both(approved) {
		require.NotContains(t, f.left(), key)
	}
}

func TestRunObeysRulesOfSingleAssets(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, first := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.run(state.RunFailed, state.TaskFailed, "b")
	f.run(state.RunSucceeded, state.TaskSucceeded, "c", "d")
	f.publish()
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	keep, ok := gc.Keep{Versions: 9, For: 90 * day, Unseen: 90 * day}, false
	f.cfg.Keep = func(of string) (gc.Keep, bool) {
		if of == asset.String() {
			return keep, ok
		}
		return gc.Keep{}, true
	}
	require.Empty(t, f.collect(gc.Options{}).Counts, "the asset's rule keeps everything")
	ok = true
	require.Empty(t, f.collect(gc.Options{}).Counts, "the asset's rule keeps more than the default")
	keep.Versions = 1
	report := f.collect(gc.Options{})
	require.Equal(t, []gc.Count{{Asset: asset.String(), Reason: gc.Superseded, Versions: 1, Files: 2, Bytes: report.Bytes}}, report.Counts)
	require.NotContains(t, f.left(), contract.CommitMarkerKeyOf(first))
}

func TestRunKeepsInputsOfLivePlans(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, first := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	built := &plan.Plan{
		SchemaVersion: 1, Assets: map[string]plan.Work{"mart/a": {SQL: "SELECT 1"}},
		Tasks: []plan.Task{{
			TaskDef: event.TaskDef{TaskKey: "mart/a", AssetKey: "mart/a", Kind: event.KindTask},
			Inputs:  map[string]plan.InputSet{"raw/events": {Items: []plan.Input{{MaterializationID: state.List[state.Task](&f.rows)[0].MaterializationID, URI: first}}}},
		}},
	}
	data, sha, err := built.Encode()
	require.NoError(t, err)
	f.put(plan.Ref(acme, sha), data)
	f.clock.now = f.clock.now.Add(day)
	f.run(state.RunSucceeded, state.TaskSucceeded, "b")
	f.publish()
	state.Set(&f.rows, append(state.List[state.Run](&f.rows), &state.Run{RunID: f.ids.New(), State: state.RunRunning, PlanRef: plan.Ref(acme, sha), Meta: f.meta()}))
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	require.Empty(t, f.collect(gc.Options{}).Counts)

	other := bytes.ReplaceAll(data, []byte(state.List[state.Task](&f.rows)[0].MaterializationID), []byte(f.ids.New()))
	_, err = f.blobs.Put(t.Context(), plan.Ref(acme, sha), other)
	require.NoError(t, err)
	_, err = gc.Run(t.Context(), f.cfg, gc.Options{})
	require.ErrorContains(t, err, "it is damaged", "the inputs of a damaged plan are unknown")

	require.NoError(t, f.blobs.Delete(t.Context(), plan.Ref(acme, sha)))
	_, err = gc.Run(t.Context(), f.cfg, gc.Options{})
	require.ErrorContains(t, err, "read the plan of a live run", "the inputs of an unreadable plan are unknown")

	runs := state.List[state.Run](&f.rows)
	runs[len(runs)-1].State = state.RunSucceeded
	f.publish()
	require.Len(t, f.collect(gc.Options{}).Counts, 1)
	require.NotContains(t, f.left(), first+"data.parquet")
}

func TestRunContinuesFromNext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 5 {
		f.run(state.RunFailed, state.TaskFailed, "a", "b")
	}
	f.clock.now = f.clock.now.Add(2 * day)
	f.publish()
	total, next := 0, ""
	for range 10 {
		report := f.collect(gc.Options{MaxDeletes: 3, After: next})
		total += report.Files
		if next = report.Next; next == "" {
			break
		}
	}
	require.Empty(t, next)
	require.Equal(t, 10, total)
}

// The objects of a partition may be in several pages.
func TestRunDividesPartitionsIntoPages(t *testing.T) {
	t.Parallel()
	whole := superseded(t)
	want := whole.collect(gc.Options{})
	require.NotEmpty(t, want.Counts)
	for _, page := range []int{1, 2, 3, 5} {
		f := superseded(t)
		require.Equal(t, want, f.collect(gc.Options{}.WithLimits(page, 10)))
		require.Len(t, f.left(), len(whole.left()))
	}
}

// superseded returns a partition with more versions than are kept, some of them with files of several executions.
func superseded(t *testing.T) *fixture {
	f := newFixture(t)
	for i := range 8 {
		f.run(state.RunSucceeded, state.TaskSucceeded, []string{"a", "b", "c"}[:1+i%3]...)
		f.clock.now = f.clock.now.Add(time.Hour)
	}
	f.run(state.RunFailed, state.TaskFailed, "a", "b")
	f.publish()
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	f.clock.now = f.clock.now.Add(day)
	f.publish()
	return f
}

// A materialization with too many objects does not prevent the collection of other materializations, assets and logs.
func TestRunKeepsMaterializationThatIsTooLarge(t *testing.T) {
	t.Parallel()
	f := superseded(t)
	first := ids.AssetKey{Namespace: "aaa", Name: "minutes"} // sorts before raw/events
	for n := range 30 {
		id := ids.MaterializationID(acme, f.ids.New(), first.String())
		for i := range 11 {
			f.put(fmt.Sprintf("%sdata-%d-%02d.parquet", contract.ExecutionPrefix(acme, first, "", id, f.ids.New(), "n"), n, i), nil)
		}
	}
	report, err := gc.Run(t.Context(), f.cfg, gc.Options{}.WithLimits(20, 10))
	require.ErrorContains(t, err, "aaa/minutes/")
	require.ErrorContains(t, err, "has more than 10 objects: they are kept")
	require.Empty(t, report.Next)
	whole := superseded(t)
	require.Equal(t, whole.collect(gc.Options{}).Counts, report.Counts)
}

func TestRunIgnoresClockThatIsAhead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.clock.now = f.clock.now.Add(time.Hour)
	f.run(state.RunSucceeded, state.TaskSucceeded, "b")
	f.publish()
	f.clock.now = f.clock.now.Add(2 * time.Hour)
	f.publish()
	f.cfg.Clock = &handClock{f.clock.now.Add(1000 * day)}
	require.Empty(t, f.collect(gc.Options{}).Counts)
}

func TestRunWithoutStateDeletesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(state.RunFailed, state.TaskFailed, "a")
	f.clock.now = f.clock.now.Add(1000 * day)
	require.Empty(t, f.collect(gc.Options{}).Counts)
}

// By the worker's clock, the version was superseded long ago. It must be kept for an hour after the revision that
// supersedes it was published, and then until the ledger is folded up to the end of this hour. Until then, a run that
// reads the version may have been planned, but not folded yet.
func TestRunWaitsUntilPlansAreFolded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.publish()
	f.run(state.RunSucceeded, state.TaskSucceeded, "b")
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	require.Empty(t, f.collect(gc.Options{}).Counts, "the later version was published only now")
	f.clock.now = f.clock.now.Add(59 * time.Minute)
	f.publish()
	require.Empty(t, f.collect(gc.Options{}).Counts)
	complete := f.newest.Watermarks.CompleteThrough
	f.clock.now = f.clock.now.Add(2 * time.Minute)
	f.publish()
	f.newest = f.newest.Successor("test")
	f.newest.Watermarks.CompleteThrough = complete
	require.NoError(t, f.cfg.Manifests.Publish(t.Context(), f.newest))
	require.Empty(t, f.collect(gc.Options{}).Counts, "entries of the last two minutes may not be folded")
	f.publish()
	require.Len(t, f.collect(gc.Options{}).Counts, 1)
}

// After a rebuild, rows have other sequence numbers. So the collector ignores revisions of the old timeline.
func TestRunWaitsAnHourAfterARebuild(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.run(state.RunSucceeded, state.TaskSucceeded, "b")
	f.publish()
	f.clock.now = f.clock.now.Add(60 * day)
	f.newest = nil
	f.publish()
	require.Empty(t, f.collect(gc.Options{}).Counts)
	f.clock.now = f.clock.now.Add(61 * time.Minute)
	f.publish()
	require.Len(t, f.collect(gc.Options{}).Counts, 1)
}

// brokenStore fails to delete or read some objects.
type brokenStore struct {
	blob.Store

	broken string
}

func (s brokenStore) Delete(ctx context.Context, key string) error {
	if strings.Contains(key, s.broken) {
		return errors.New("permission denied")
	}
	return s.Store.Delete(ctx, key)
}

func (s brokenStore) Open(ctx context.Context, key string) (io.ReadCloser, blob.Object, error) {
	if strings.Contains(key, s.broken) {
		return nil, blob.Object{}, errors.New("permission denied")
	}
	return s.Store.Open(ctx, key)
}

func (s brokenStore) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	if strings.Contains(key, s.broken) {
		return nil, blob.Object{}, errors.New("permission denied")
	}
	return s.Store.Get(ctx, key)
}

func TestRunSkipsBrokenObjects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, _ := f.run(state.RunFailed, state.TaskFailed, "a")
	f.run(state.RunFailed, state.TaskFailed, "b")
	_, visible := f.run(state.RunSucceeded, state.TaskSucceeded, "c", "d")
	f.clock.now = f.clock.now.Add(2 * day)
	f.publish()
	broken := ids.MaterializationID(acme, first, asset.String())
	f.cfg.Store = brokenStore{f.blobs, broken}
	report, err := gc.Run(t.Context(), f.cfg, gc.Options{})
	require.ErrorContains(t, err, broken)
	require.Equal(t, 2, report.Files, "the others are deleted, one of them of an execution that lost")
	f.cfg.Store = brokenStore{f.blobs, contract.CommitMarkerKeyOf(visible)}
	report, err = gc.Run(t.Context(), f.cfg, gc.Options{})
	require.NoError(t, err)
	require.Equal(t, 1, report.Files)
}

// The commit marker cannot be read, so it is unknown which of two executions it names.
func TestRunKeepsFilesOfUnreadableMarkers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, visible := f.run(state.RunSucceeded, state.TaskSucceeded, "a", "b")
	f.run(state.RunFailed, state.TaskFailed, "c")
	f.clock.now = f.clock.now.Add(2 * day)
	f.publish()
	f.cfg.Store = brokenStore{f.blobs, contract.CommitMarkerKeyOf(visible)}
	report, err := gc.Run(t.Context(), f.cfg, gc.Options{})
	require.ErrorContains(t, err, contract.CommitMarkerKeyOf(visible))
	require.Equal(t, 1, report.Files, "the file of the failed run")
	require.Contains(t, f.left(), visible+"data.parquet")
}

func TestRunKeepsPublishedOutputs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, first := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	_, second := f.run(state.RunSucceeded, state.TaskSucceeded, "b")
	f.run(state.RunSucceeded, state.TaskSucceeded, "c")
	f.publish()
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	id := path.Base(path.Dir(strings.TrimSuffix(first, "/")))
	f.cfg.Published = func() (map[string]bool, error) { return nil, errors.New("a record is damaged") }
	before := f.left()
	_, err := gc.Run(t.Context(), f.cfg, gc.Options{})
	require.ErrorContains(t, err, "a record is damaged")
	require.Equal(t, before, f.left(), "nothing is deleted while it is unknown what is published")

	f.cfg.Published = func() (map[string]bool, error) { return map[string]bool{id: true}, nil }
	f.collect(gc.Options{})
	require.Subset(t, f.left(), []string{contract.CommitMarkerKeyOf(first), first + "data.parquet"}, "a place still shows the version")
	require.NotContains(t, f.left(), second+"data.parquet")

	f.cfg.Published = func() (map[string]bool, error) { return nil, nil }
	f.collect(gc.Options{})
	require.NotContains(t, f.left(), first+"data.parquet")
}

func TestRunKeepsOutputsOfPinnedRevisions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, first := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.publish()
	_, second := f.run(state.RunSucceeded, state.TaskSucceeded, "b")
	f.publish()
	pinned := f.newest.Revision
	f.pin(pinned)
	f.run(state.RunSucceeded, state.TaskSucceeded, "c")
	until := event.At(f.clock.now.Add(90 * day))
	absent := f.newest.Revision + 1_000 // as if the revision had been collected before its pin took effect
	for i, revision := range []int64{pinned, absent} {
		row := &state.Pin{Revision: fmt.Sprint(revision), Until: until, Meta: f.meta()}
		state.Set(&f.rows, append(state.List[state.Pin](&f.rows), row))
		require.Len(t, state.List[state.Pin](&f.rows), i+1)
	}
	f.publish()
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	f.collect(gc.Options{})
	require.NotContains(t, f.left(), first+"data.parquet")
	require.Subset(t, f.left(), []string{contract.CommitMarkerKeyOf(second), second + "data.parquet"}, "the pinned revision shows it")

	f.clock.now = f.clock.now.Add(31 * day)
	f.publish()
	f.collect(gc.Options{})
	require.NotContains(t, f.left(), second+"data.parquet", "the pin has ended")
}

// The partition stores only its visible output. A person hid the output after the revision was pinned.
func TestRunKeepsHiddenOutputsOfPinnedRevisions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, only := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.publish()
	pinned := f.newest.Revision
	f.pin(pinned)
	until := event.At(f.clock.now.Add(90 * day))
	state.Set(&f.rows, []*state.Pin{{Revision: fmt.Sprint(pinned), Until: until, Meta: f.meta()}})
	shown := state.List[state.Partition](&f.rows)[0]
	state.Set(&f.rows, []*state.Mark{{
		AssetKey: shown.AssetKey, PartitionKey: shown.PartitionKey, MaterializationID: shown.MaterializationID, Mark: event.MarkMissing,
		MarkedAt: event.At(f.clock.now), Meta: f.meta(),
	}})
	f.publish()
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	f.collect(gc.Options{})
	require.Subset(t, f.left(), []string{contract.CommitMarkerKeyOf(only), only + "data.parquet"}, "the pinned revision shows it")

	f.clock.now = f.clock.now.Add(31 * day)
	f.publish()
	f.collect(gc.Options{})
	require.NotContains(t, f.left(), only+"data.parquet", "the pin has ended")
}

func TestRunKeepsEverythingIfPinIsDamaged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.publish()
	pinned := f.newest.Revision
	f.pin(pinned)
	f.run(state.RunSucceeded, state.TaskSucceeded, "b")
	state.Set(&f.rows, []*state.Pin{{Revision: fmt.Sprint(pinned), Until: event.At(f.clock.now.Add(90 * day)), Meta: f.meta()}})
	f.publish()
	f.clock.now = f.clock.now.Add(60 * day)
	f.publish()
	before := f.left()
	f.put(manifest.Key(acme, pinned), []byte("damaged"))
	_, err := gc.Run(t.Context(), f.cfg, gc.Options{})
	require.ErrorContains(t, err, "read the pinned revision ")
	require.Equal(t, before, f.left())
}
