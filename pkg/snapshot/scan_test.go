package snapshot_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/corpus"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// scanned is an opened corpus, together with all rows of its state.
type scanned struct {
	*corpus.Corpus
	snap *snapshot.Snapshot
	all  *state.Rows
}

func newScanned(t *testing.T, size corpus.Size) *scanned {
	t.Helper()
	c := corpus.New(ids.Domain{Tenant: "acme", Workspace: "prod"}, size, 1, time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC))
	dir := t.TempDir()
	require.NoError(t, c.Write(t.Context(), dir))
	store, err := fileblob.Open(dir, fileblob.Options{NoSync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	h := domain.Open(domain.Handle{Domain: c.Domain, Store: store, Clock: clock.System{}})
	m, err := h.Manifests.Load(t.Context())
	require.NoError(t, err)
	snap, err := snapshot.NewReader(c.Domain, h.Codec, h.Manifests, h.Clock).Current(t.Context())
	require.NoError(t, err)
	closed, err := snapshot.LoadHistory(t.Context(), h.Codec, h.Manifests, m)
	require.NoError(t, err)
	all, err := state.Merge([]*state.Rows{closed, snap.State.All()})
	require.NoError(t, err)
	return &scanned{c, snap, all}
}

// All pages of a query together must be the list of all matching runs, newest first: for pages of any size, with any
// filter and any limit on the work for a page.
func TestFindRunsEqualsListOfAllRows(t *testing.T) {
	s := newScanned(t, corpus.Size{Assets: 20, Runs: 20_000, Partitions: 2_000, Tasks: 50})
	var all []string
	heads := map[string]snapshot.RunHead{}
	rows := map[string]*state.Run{}
	for _, r := range state.List[state.Run](s.all) {
		heads[r.RunID] = snapshot.RunHead{
			RunID: r.RunID, TriggerType: r.TriggerType, State: r.State, RootAssets: r.RootAssets, ScheduleID: r.ScheduleID, TasksFailed: r.TasksFailed,
			RootAssetsTotal: r.RootAssetsTotal,
		}
		rows[r.RunID] = r
		all = append(all, r.RunID)
	}
	slices.Sort(all)
	slices.Reverse(all)
	require.Greater(t, len(all), 20_000)
	for name, match := range map[string]func(snapshot.RunHead) bool{
		"all": nil, "failed": func(r snapshot.RunHead) bool { return r.State == state.RunFailed },
		"of an asset": func(r snapshot.RunHead) bool { return r.RootAssets == `["mart/asset00003"]` },
		"of a schedule": func(r snapshot.RunHead) bool {
			return r.ScheduleID == "nightly-7" && r.TriggerType == "schedule" && r.TasksFailed == 0
		},
		"none": func(snapshot.RunHead) bool { return false },
	} {
		for _, q := range []snapshot.RunQuery{{Limit: 7_000}, {Limit: 333}, {Limit: 50, Most: 1}, {Limit: 1000, Since: s.RunID(9_000)}} {
			if match == nil && q.Limit < 100 {
				continue // this combination would need too many pages
			}
			var want, got []string
			for _, id := range all {
				if id >= q.Since && (match == nil || match(heads[id])) {
					want = append(want, id)
				}
			}
			q.Match = match
			pages, full := 0, 0
			for q.Before = ""; ; {
				page, err := s.snap.FindRuns(t.Context(), q)
				require.NoError(t, err)
				pages++
				for _, r := range page.Runs {
					require.Equal(t, rows[r.RunID], r)
					got = append(got, r.RunID)
				}
				if len(page.Runs) == q.Limit {
					full++
				}
				if q.Before = page.Next; q.Before == "" {
					break
				}
			}
			require.Equal(t, want, got, "%s, %+v", name, q)
			if q.Most == 0 {
				require.GreaterOrEqual(t, full, pages-1, "without a bound, only the last page is short")
			}
			if q.Most > 0 && len(want) < q.Limit {
				require.Greater(t, pages, 1, "a bound ends a page early")
			}
		}
	}
}

func TestFindTasksEqualsListOfAllRows(t *testing.T) {
	s := newScanned(t, corpus.Size{Assets: 20, Runs: 1_000, Partitions: 200_000, Tasks: 19_000})
	byRun := map[string][]*state.Task{}
	for _, task := range state.List[state.Task](s.all) {
		byRun[task.RunID] = append(byRun[task.RunID], task)
	}
	live := s.snap.State.Runs.Last().RunID
	for _, run := range []string{s.LargeRun(), s.RunID(0), s.RunID(999), live, ids.AtTime(s.Now.Add(time.Hour))} {
		for _, match := range []func(snapshot.TaskHead) bool{nil, func(h snapshot.TaskHead) bool { return h.State == state.TaskFailed }} {
			for _, q := range []snapshot.TaskQuery{{Limit: 20_000}, {Limit: 4_099}, {Limit: 1_000, Most: 1}} {
				var want, got []*state.Task
				for _, task := range byRun[run] {
					if match == nil || match(snapshot.TaskHead{State: task.State}) {
						want = append(want, task)
					}
				}
				q.RunID, q.Match = run, match
				for q.After = ""; ; {
					page, err := s.snap.FindTasks(t.Context(), q)
					require.NoError(t, err)
					got = append(got, page.Tasks...)
					if q.After = page.Next; q.After == "" {
						break
					}
				}
				require.Equal(t, len(want), len(got), "%s %+v", run, q)
				require.Equal(t, want, got)
			}
		}
	}
	large := byRun[s.LargeRun()]
	for _, task := range []*state.Task{large[0], large[len(large)-1], byRun[s.RunID(7)][0], byRun[live][0]} {
		got, err := s.snap.Task(t.Context(), task.RunID, task.TaskKey)
		require.NoError(t, err)
		require.Equal(t, task, got)
	}
	got, err := s.snap.Task(t.Context(), s.LargeRun(), "mart/none")
	require.NoError(t, err)
	require.Nil(t, got)
	failed, err := s.snap.FailedTasks(t.Context(), &state.Run{RunID: s.LargeRun()})
	require.NoError(t, err)
	require.Len(t, failed, 190)
}

func TestClosedRunEqualsItsRowsInHistory(t *testing.T) {
	s := newScanned(t, corpus.Size{Assets: 20, Runs: 9_000, Partitions: 2_000, Tasks: 50})
	for _, i := range []int{0, 1, 2_047, 2_048, 8_191, 8_192, 8_980, 8_999} { // run 8,980 has a segment of its own
		id := s.RunID(i)
		want := state.New(s.Domain)
		want.Load(s.all.OfRun(id))
		got, err := s.snap.History.Run(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, want.All(), got.All())
		has, err := s.snap.History.Has(t.Context(), id)
		require.NoError(t, err)
		require.True(t, has)
		run, err := s.snap.Run(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, want.Runs.Get(id), run)
	}
	unknown := ids.AtTime(s.Now.Add(-24 * time.Hour).Add(time.Millisecond))
	got, err := s.snap.History.Run(t.Context(), unknown)
	require.NoError(t, err)
	require.Nil(t, got)
	has, err := s.snap.History.Has(t.Context(), unknown)
	require.NoError(t, err)
	require.False(t, has)
	run, err := s.snap.Run(t.Context(), unknown)
	require.NoError(t, err)
	require.Nil(t, run)
}

// A look-up of one partition returns the same row as a listing, whether files are cached or not.
func TestPartitionEqualsListing(t *testing.T) {
	s := newScanned(t, corpus.Size{Assets: 20, Runs: 100, Partitions: 40_000, Tasks: 50})
	asset := s.LargeAsset().String()
	rows := map[string]*state.Partition{}
	for _, row := range state.List[state.Partition](s.all) {
		if row.AssetKey == asset {
			rows[row.PartitionKey] = row
		}
	}
	check := func() {
		t.Helper()
		for i, key := range slices.Sorted(func(yield func(string) bool) {
			for key := range rows {
				if !yield(key) {
					return
				}
			}
		}) {
			if i%97 != 0 {
				continue
			}
			row, err := s.snap.Partition(t.Context(), asset, key)
			require.NoError(t, err)
			require.Equal(t, rows[key], row)
			row, err = s.snap.Partition(t.Context(), asset, strings.Replace(key, "t0", "x0", 1))
			require.NoError(t, err)
			require.Nil(t, row)
		}
	}
	check()
	n := 0
	for row, err := range s.snap.Partitions(t.Context(), asset, "") {
		require.NoError(t, err)
		require.Equal(t, rows[row.PartitionKey], row)
		n++
	}
	require.Len(t, rows, n)
	check()
}

// A query from any key of an asset returns the same rows as the list of all rows, although it decodes only parts of
// files.
func TestPartitionsOfAssetEqualListOfAllRows(t *testing.T) {
	s := newScanned(t, corpus.Size{Assets: 30, Runs: 100, Partitions: 60_000, Tasks: 50})
	of := map[string][]*state.Partition{}
	for row, err := range s.snap.AllPartitions(t.Context()) {
		require.NoError(t, err)
		of[row.AssetKey] = append(of[row.AssetKey], row)
	}
	require.Greater(t, len(of[s.LargeAsset().String()]), 4_096, "the rows are in several parts of a file")
	for asset, rows := range of {
		for _, from := range []int{0, 1, len(rows) / 2, len(rows) - 1} {
			for _, key := range []string{rows[from].PartitionKey, rows[from].PartitionKey[1:], "", "~"} {
				at, _ := slices.BinarySearchFunc(rows, key, func(row *state.Partition, key string) int { return strings.Compare(row.PartitionKey, key) })
				var got []*state.Partition
				for row, err := range s.snap.Partitions(t.Context(), asset, key) {
					require.NoError(t, err)
					got = append(got, row)
				}
				require.True(t, slices.EqualFunc(rows[at:], got, func(a, b *state.Partition) bool { return *a == *b }), "%s from %q", asset, key)
			}
		}
		var versions []string
		for row, err := range s.snap.Versions(t.Context(), asset) {
			require.NoError(t, err)
			versions = append(versions, row.PartitionKey+" "+row.RunID)
		}
		var want []string
		for _, row := range rows {
			want = append(want, row.PartitionKey+" "+row.RunID)
		}
		require.Equal(t, want, versions)
	}
	for row, err := range s.snap.Partitions(t.Context(), "mart/none", "") {
		t.Fatal("an asset without outputs has a row", row, err)
	}
}
