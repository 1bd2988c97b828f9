package api_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

// runsOf reads all pages of a listing. Before each page except the first, it calls the function between.
func runsOf(t *testing.T, c clients, r *servov1.ListRunsRequest, between func()) (ids []string, revision int64) {
	t.Helper()
	for {
		page, err := c.execution.ListRuns(t.Context(), r)
		require.NoError(t, err)
		if revision != 0 {
			require.Equal(t, revision, page.GetRevision())
		}
		revision = page.GetRevision()
		for _, run := range page.GetRuns() {
			ids = append(ids, run.GetRunId())
		}
		if page.GetNextPageToken() == "" {
			return ids, revision
		}
		require.Len(t, page.GetRuns(), int(r.GetPageSize()))
		r = proto.CloneOf(r)
		r.PageToken = page.GetNextPageToken()
		between()
	}
}

// Runs that start while a listing is read do not appear in it, and no other run is skipped or repeated.
func TestPagesShowOneRevision(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	c := f.connect(t)
	for range 5 {
		f.run(t)
	}
	whole, revision := runsOf(t, c, &servov1.ListRunsRequest{}, func() {})
	require.Len(t, whole, 5)
	paged, at := runsOf(t, c, &servov1.ListRunsRequest{PageSize: 2}, func() { f.run(t) })
	require.Equal(t, whole, paged)
	require.GreaterOrEqual(t, at, revision)
	again, _ := runsOf(t, c, &servov1.ListRunsRequest{PageSize: 3}, func() {})
	require.Len(t, again, 7)
}

// A process continues a listing that another process on the same folder began. The pages still show the revision of
// the first page, although runs have started before and after the restart. A process with another key rejects the
// token.
func TestPagesContinueAfterRestart(t *testing.T) {
	dir, key := t.TempDir(), []byte("the key of the folder")
	f := serveIn(t, dir, key, asset("raw/a", "exit 0"))
	for range 5 {
		f.run(t)
	}
	c := f.connect(t)
	whole, _ := runsOf(t, c, &servov1.ListRunsRequest{}, func() {})
	first, err := c.execution.ListRuns(t.Context(), &servov1.ListRunsRequest{PageSize: 2})
	require.NoError(t, err)
	f.run(t)
	require.NoError(t, f.stack.Close())

	f = serveIn(t, dir, key, asset("raw/a", "exit 0"))
	f.run(t)
	rest, revision := runsOf(t, f.connect(t), &servov1.ListRunsRequest{PageSize: 2, PageToken: first.GetNextPageToken()}, func() { f.run(t) })
	require.Equal(t, first.GetRevision(), revision)
	require.Equal(t, whole[2:], rest)
	require.NoError(t, f.stack.Close())

	f = serveIn(t, dir, []byte("another key"), asset("raw/a", "exit 0"))
	_, err = f.connect(t).execution.ListRuns(t.Context(), &servov1.ListRunsRequest{PageSize: 2, PageToken: first.GetNextPageToken()})
	require.EqualValues(t, http.StatusGone, problemIn(t, err).GetStatus())
}

// A listing continues at its revision while runs change the state, the base is written again several times, and
// another process takes over.
func TestPagesContinueAcrossBases(t *testing.T) {
	dir, key := t.TempDir(), []byte("the key of the folder")
	small := tiers.Options{MaxDeltas: 2, MaxInline: 1000, MinBase: 1000}
	f := serveTiers(t, dir, key, small, asset("raw/a", "exit 0"))
	for range 6 {
		f.run(t)
	}
	c := f.connect(t)
	whole, _ := runsOf(t, c, &servov1.ListRunsRequest{}, func() {})
	bases := map[string]bool{}
	look := func() {
		files, err := filepath.Glob(filepath.Join(dir, "state", "orchestration", "*", "*", "*", "base", "*.parquet"))
		require.NoError(t, err)
		for _, file := range files {
			bases[filepath.Base(file)] = true // the id of the base
		}
	}
	look()
	first, err := c.execution.ListRuns(t.Context(), &servov1.ListRunsRequest{PageSize: 1})
	require.NoError(t, err)
	f.run(t)
	look()
	require.NoError(t, f.stack.Close())

	f = serveTiers(t, dir, key, small, asset("raw/a", "exit 0"))
	rest, revision := runsOf(t, f.connect(t), &servov1.ListRunsRequest{PageSize: 1, PageToken: first.GetNextPageToken()}, func() {
		f.run(t)
		look()
	})
	require.Equal(t, first.GetRevision(), revision)
	require.Equal(t, whole[1:], rest)
	require.Greater(t, len(bases), 2, "the base was not written often enough for this test")
}

func TestPageTokensAreChecked(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	c := f.connect(t)
	f.run(t)
	f.run(t)
	page, err := c.execution.ListRuns(t.Context(), &servov1.ListRunsRequest{PageSize: 1})
	require.NoError(t, err)
	token := page.GetNextPageToken()
	for name, r := range map[string]*servov1.ListRunsRequest{
		"another filter": {PageSize: 1, PageToken: token, Trigger: "manual"},
		"no token":       {PageSize: 1, PageToken: "x"},
		"not base64":     {PageSize: 1, PageToken: "§"},
	} {
		_, err := c.execution.ListRuns(t.Context(), r)
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), name)
		require.Equal(t, "page_token", problemIn(t, err).GetFieldViolations()[0].GetField(), name)
	}
	_, err = c.execution.ListTasks(t.Context(), &servov1.ListTasksRequest{RunId: "latest", PageToken: token})
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "of another call")

	changed := strings.Map(func(r rune) rune { return map[rune]rune{'A': 'B'}[r] + r*map[bool]rune{true: 0, false: 1}[r == 'A'] }, token[:10]) + token[10:]
	if changed == token {
		changed = "A" + token[1:]
	}
	_, err = c.execution.ListRuns(t.Context(), &servov1.ListRunsRequest{PageSize: 1, PageToken: changed})
	require.EqualValues(t, http.StatusGone, problemIn(t, err).GetStatus(), "of another process")

	other := serve(t, asset("raw/a", "exit 0"))
	_, err = other.connect(t).execution.ListRuns(t.Context(), &servov1.ListRunsRequest{PageSize: 1, PageToken: token})
	require.EqualValues(t, http.StatusGone, problemIn(t, err).GetStatus())
	require.Equal(t, "urn:servo:problem:page-token-expired", problemIn(t, err).GetType())
}

// The only partition of an asset without dimensions has an empty key. An earlier version did not list such a partition.
func TestPartitionsAreListedInPages(t *testing.T) {
	f := serve(t, daily(asset("raw/days", "exit 0")), asset("report/all", "exit 0", "raw/days"))
	c := f.connect(t)
	f.run(t, "date=2025-01-02..2025-01-03")
	var got []string
	r := &servov1.ListPartitionsRequest{Namespace: "raw", Name: "days", PageSize: 2}
	for {
		page, err := c.partitions.ListPartitions(t.Context(), r)
		require.NoError(t, err)
		for _, p := range page.GetPartitions() {
			got = append(got, p.GetPartition()+" "+p.GetStatus())
		}
		if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
			break
		}
	}
	require.Equal(t, []string{
		"date=2025-01-01 missing", "date=2025-01-02 fresh", "date=2025-01-03 fresh", "date=2025-01-04 missing", "date=2025-01-05 missing",
	}, got)

	only, err := c.partitions.ListPartitions(t.Context(), &servov1.ListPartitionsRequest{Namespace: "report", Name: "all", PageSize: 1})
	require.NoError(t, err)
	require.Len(t, only.GetPartitions(), 1)
	require.Equal(t, "fresh", only.GetPartitions()[0].GetStatus())
	require.Empty(t, only.GetNextPageToken())

	sum, err := c.partitions.GetPartitionSummary(t.Context(), &servov1.GetPartitionSummaryRequest{Namespace: "raw", Name: "days", Buckets: 2, From: "2025-01-02"})
	require.NoError(t, err)
	require.Equal(t, "date", sum.GetDimension())
	require.EqualValues(t, 2, sum.GetTotal().GetFresh())
	require.EqualValues(t, 2, sum.GetTotal().GetMissing())
	require.Len(t, sum.GetBuckets(), 2)
	require.Equal(t, "2025-01-03", sum.GetBuckets()[0].GetTo())
	require.EqualValues(t, 2, sum.GetBuckets()[0].GetFresh())
}
