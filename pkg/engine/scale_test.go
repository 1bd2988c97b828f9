package engine_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

var (
	partitionsFlag = flag.Int("partitions", 0, "number of partitions of TestPartitionsAtScale; 0: skip it")
	scaleDir       = flag.String("scale-dir", "", "empty folder for the state of TestPartitionsAtScale; \"\": a temporary one")
)

// scale is a domain with many partitions. Their rows are in files, as the compactor writes them.
type scale struct {
	*foldtest.World
	t        *testing.T
	handle   *domain.Handle
	tiers    *tiers.Tiers
	manifest *manifest.Manifest
	assets   []plan.Asset
	rows     int
	large    int // the number of partitions of each of the first four assets: a tenth of all partitions
}

const (
	largeAssets = 4      // an asset and the three that it reads
	smallAssets = 996    // 1,000 in total
	perChunk    = 25_000 // how many rows are written between two bases
	tenants     = 100
	minBase     = 64 << 10 // a small size, so that bases are written often and omit each row as soon as possible
)

// assetAt returns an asset with n partitions by day and tenant.
func assetAt(i, n int) plan.Asset {
	days := max(1, n/tenants)
	first := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	partitions := space.Days("2000-01-01", first.AddDate(0, 0, days-1).Format(time.DateOnly))
	names := make([]string, tenants)
	for j := range names {
		names[j] = fmt.Sprintf("t%03d", j)
	}
	partitions = space.New(partitions.Dimensions[0], space.Dimension{Name: "tenant", Kind: space.Static, Values: names})
	return plan.Asset{
		Key: ids.AssetKey{Namespace: "mart", Name: fmt.Sprintf("asset%04d", i)}, Partitions: partitions, Work: plan.Work{SQL: "SELECT 1"}, Code: "00000000000000aa",
	}
}

func newScale(t *testing.T, n int) *scale {
	t.Helper()
	dir := *scaleDir
	if dir == "" {
		dir = t.TempDir()
	}
	store, err := fileblob.Open(filepath.Join(dir, fmt.Sprint(n)), fileblob.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s := &scale{World: foldtest.New(t), t: t}
	s.handle = domain.Open(domain.Handle{Domain: foldtest.Domain, Store: store, Clock: fixedClock{func() time.Time { return s.Now }}})
	s.tiers = tiers.New(tiers.Config{Handle: s.handle, Options: tiers.Options{MinBase: minBase}, OnStored: func(time.Time) {}})
	s.rows, s.large = n, n/10
	small := (n - largeAssets*s.large) / smallAssets
	for i := range largeAssets + smallAssets {
		size := small
		if i < largeAssets {
			size = s.large
		}
		s.assets = append(s.assets, assetAt(i, size))
	}
	for i := range largeAssets - 1 {
		s.assets[largeAssets-1].Deps = append(s.assets[largeAssets-1].Deps, s.assets[i].Key)
	}
	return s
}

type fixedClock struct{ now func() time.Time }

// fill writes all rows, day by day. After each chunk of days, it lets time pass, so that the rows of the chunk may
// leave the live state.
func (s *scale) fill() (rows int) {
	version := int64(0)
	chunks := max(40, s.rows/perChunk)
	for chunk := range chunks {
		for i := range s.assets {
			run := s.ID()
			a := &s.assets[i]
			days := a.Partitions.Dimensions[0]
			first, err := time.Parse(time.DateOnly, days.Start)
			require.NoError(s.t, err)
			last, err := time.Parse(time.DateOnly, days.End)
			require.NoError(s.t, err)
			total := int(last.Sub(first).Hours())/24 + 1
			for day := total * chunk / chunks; day < total*(chunk+1)/chunks; day++ {
				for _, tenant := range a.Partitions.Dimensions[1].Values {
					key := ids.Partition{"date": first.AddDate(0, 0, day).Format(time.DateOnly), "tenant": tenant}
					s.put(a, key, run)
					version, rows = s.State.FoldSeq, rows+1
				}
			}
		}
		s.publish()
		s.Pass(3 * time.Hour)
		s.fold() // this fold publishes the new base, which omits the rows
	}
	require.Positive(s.t, version)
	s.settle()
	return rows
}

// settle lets time pass and publishes several times, until all rows written so far have moved to history, and the
// newest base no longer contains them.
func (s *scale) settle() {
	for range 3 {
		s.Pass(3 * time.Hour)
		defs := make([]event.TaskDef, 200) // enough tasks that a new base is written
		for i := range defs {
			defs[i].TaskKey = fmt.Sprint(i)
		}
		s.State.FoldTime = event.At(s.Now)
		s.Run(defs...)
		s.publish()
		s.Pass(3 * time.Hour)
		s.fold()
	}
}

// put writes the row of a partition in the same way as the fold.
func (s *scale) put(a *plan.Asset, key ids.Partition, run string) {
	s.State.FoldSeq++
	task := ids.TaskKey(a.Key, key)
	id := ids.MaterializationID(foldtest.Domain, run, task)
	row := &state.Partition{
		AssetKey: a.Key.String(), PartitionKey: key.Key(), Status: state.Materialized, MaterializationID: id, MaterializedAt: event.At(s.Now),
		RunID: run, TaskKey: task, OutputURI: "assets/tenant=acme/workspace=prod/" + a.Key.String() + "/" + id + "/" + id + "-0/",
		RowCount: 1000, ByteSize: 65_536, SchemaHash: "0123456789abcdef", Code: a.Code, VersionSeq: s.State.FoldSeq, InputsSeq: s.State.FoldSeq,
	}
	row.Tenant, row.Workspace, row.Seq, row.Version = "acme", "prod", s.State.FoldSeq, id
	s.State.Partitions.Put(row)
}

// fold folds the trigger of a run with one task, publishes, folds the end of the task, and publishes again. It
// returns the size of the last manifest.
func (s *scale) fold() (bytes int) {
	s.State.FoldTime = event.At(s.Now)
	run := s.Run(event.TaskDef{TaskKey: "mart/new", AssetKey: "mart/new"})
	s.publish()
	s.Pass(time.Millisecond)
	require.Equal(s.t, state.Folded, fold.Apply(s.State, s.Group(s.Finished(run, "mart/new", 1, event.Succeeded))).Row.Outcome)
	return s.publish()
}

// publish publishes the changed rows, and waits for merges. It returns the size of the manifest.
func (s *scale) publish() (bytes int) {
	ctx := s.t.Context()
	change, err := s.tiers.Store(ctx, s.State.Changed())
	require.NoError(s.t, err)
	next, base := manifest.First(foldtest.Domain, s.handle.IDs.New(), "writer"), ""
	if s.manifest != nil {
		next, base = s.manifest.Successor("writer"), s.manifest.BaseSnapshot.ID
	}
	next.FoldSeq, next.FoldTime = s.State.FoldSeq, max(s.State.FoldTime, event.At(s.Now))
	next.Watermarks.CompleteThrough = ids.AtTime(s.Now)
	require.NoError(s.t, s.tiers.Include(next, &change))
	if next.BaseSnapshot.ID != base {
		s.State.Evict(snapshot.CutoffOf(next))
	}
	next.RowCounts = s.State.Counts()
	require.NoError(s.t, s.handle.Manifests.Publish(ctx, next))
	s.State.Drain()
	s.manifest = next
	s.tiers.Advance(next, &change)
	s.tiers.StartMerges(ctx, s.State)
	s.tiers.AwaitMerges()
	data, err := manifest.Encode(next)
	require.NoError(s.t, err)
	return len(data)
}

// open reads the newest state in the same way as a new process.
func (s *scale) open() *snapshot.Snapshot {
	store := manifest.New(manifest.Config{Domain: foldtest.Domain, Store: s.handle.Store, IDs: s.handle.IDs, Clock: s.handle.Clock})
	snap, err := snapshot.NewReader(foldtest.Domain, snapshot.NewCodec(), store, s.handle.Clock).Current(s.t.Context())
	require.NoError(s.t, err)
	return snap
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// peak returns the peak resident memory of the process so far, in MiB, or 0 if it is unknown.
func peak() int {
	data, _ := os.ReadFile("/proc/self/status")
	kib := 0
	for line := range strings.Lines(string(data)) {
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &kib)
	}
	return kib >> 10
}

// TestPartitionsAtScale measures a domain with 1,000 assets. The flag -partitions sets the number of their
// partitions: see `make bench-partitions`. It writes rows of partition_status through the tiers, and folds single
// runs.
func TestPartitionsAtScale(t *testing.T) {
	if *partitionsFlag == 0 {
		t.Skip("set -partitions")
	}
	for _, n := range []int{min(100_000, *partitionsFlag), *partitionsFlag} {
		measure(t, n)
	}
}

// In a domain with 139,600 partitions, a commit writes as many bytes, within 10 %, as in a domain without other
// partitions.
func TestCommitDoesNotGrowWithPartitions(t *testing.T) {
	few, many := newScale(t, 100_000), newScale(t, 100_000)
	for range 40 { // as many runs as the method fill folds below
		few.Pass(3 * time.Hour)
		few.fold()
	}
	few.settle()
	require.Greater(t, many.fill(), 100_000)
	want, got := few.fold(), many.fold()
	t.Logf("%d and %d bytes", want, got)
	require.InEpsilon(t, want, got, 0.1)
	require.Equal(t, few.State.Partitions.Len(), many.State.Partitions.Len(), "live rows")
}

func measure(t *testing.T, n int) {
	t.Helper()
	s := newScale(t, n)
	log := func(what, format string, args ...any) {
		t.Logf("%10d partitions  %-34s %s", n, what, fmt.Sprintf(format, args...))
	}
	timed := func(what string, do func()) {
		began := clock.System{}.Now()
		do()
		log(what, "%v", clock.System{}.Now().Sub(began).Round(10*time.Microsecond))
	}
	idle := heap()
	began := clock.System{}.Now()
	rows := s.fill()
	log("written through the tiers", "%d rows in %v", rows, clock.System{}.Now().Sub(began).Round(time.Second))
	log("manifest after a success", "%d bytes", s.fold())
	log("live rows of partition_status", "%d", s.State.Partitions.Len())
	log("compactor heap beyond idle", "%d KiB; the process used at most %d MiB", (heap()-idle)>>10, peak())
	base := int64(0)
	for _, f := range s.manifest.BaseSnapshot.Files {
		base += f.Size
	}
	index := s.manifest.History["partition_status"]
	files, err := s.handle.Manifests.Segments(t.Context(), index)
	require.NoError(t, err)
	size := int64(0)
	for _, f := range files {
		size += f.Size
	}
	log("base; index", "%d KiB; %d KiB", base>>10, index.Size>>10)
	log("sorted runs", "%d files in %d runs, %d MiB, %d rows", len(files), len(snapshot.SortedRuns(files)), size>>20, index.Rows)

	var snap *snapshot.Snapshot
	timed("load", func() { snap = s.open() })
	a := &s.assets[largeAssets-1]
	middle := ids.Partition{"date": time.Date(2000, 1, 1+s.large/tenants/2, 0, 0, 0, 0, time.UTC).Format(time.DateOnly), "tenant": "t050"}.Key()
	times := plan.Calendar{Now: s.Now, Zone: calendar.Zone}
	page := func() {
		found, err := view.PartitionPage(snap.Partitions(t.Context(), a.Key.String(), middle), a, times, middle, 1000)
		require.NoError(t, err)
		require.NotEmpty(t, found)
	}
	timed("a page of 1,000, cold", page)
	timed("a page of 1,000, warm", page)
	snap = s.open()
	timed("explain of a partition, cold", func() {
		e, err := engine.Staleness(t.Context(), snap, s.assets, s.Now)
		require.NoError(t, err)
		_, err = e.Explain(a.Key, middle)
		require.NoError(t, err)
	})
	snap = s.open()
	for _, warmth := range []string{"cold", "warm"} {
		timed(fmt.Sprintf("staleness of %d, %s", s.large, warmth), func() {
			e, err := engine.Staleness(t.Context(), snap, s.assets[:largeAssets], s.Now)
			require.NoError(t, err)
			counts, err := e.Count(a.Key)
			require.NoError(t, err)
			require.Positive(t, counts.Fresh+counts.Stale)
		})
	}
	snap = s.open()
	before := heap()
	timed("run --all --stale --dry-run, cold", func() {
		r := engine.RunRequest{Need: engine.NeedStale, Plan: plan.Request{Assets: s.assets, All: true}}
		_, err := engine.Choose(t.Context(), snap, &r, s.Now)
		require.True(t, err == nil || errors.Is(err, engine.ErrNothing), "%v", err)
	})
	log("heap after that", "%d MiB more; the process used at most %d MiB", int64(heap()-before)>>20, peak()) //nolint:gosec // small
}

func (c fixedClock) Now() time.Time { return c.now() }

func (fixedClock) Sleep(context.Context, time.Duration) error { return nil }
