package merged_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/merged"
)

// outputs returns n small outputs of one version.
func outputs(n int, version string) []merged.Candidate {
	list := make([]merged.Candidate, n)
	for i := range list {
		p := fmt.Sprintf("%04d", i)
		list[i] = merged.Candidate{Cell: merged.Cell{Partition: p, Materialization: p + version, URI: "a/" + p + version + "/"}, Schema: "s", Bytes: 1000, Fixed: true}
	}
	return list
}

// fileOf returns a merged file of some outputs.
func fileOf(of []merged.Candidate) *merged.File {
	f := &merged.File{Schema: of[0].Schema}
	for _, c := range of {
		f.Cells = append(f.Cells, c.Cell)
		f.Bytes += c.Bytes
	}
	return f
}

func TestCoverUsesExactlyTheOutputsThatAreRead(t *testing.T) {
	t.Parallel()
	all := outputs(200, "x")
	file := fileOf(all[:100])
	require.Equal(t, []merged.Run{{From: 0, To: 100}}, merged.Usual.Cover(all, []*merged.File{file}))
	require.Equal(t, []merged.Run{{From: 0, To: 60, First: 40}}, merged.Usual.Cover(all[40:], []*merged.File{file}))
	require.Empty(t, merged.Usual.Cover(all[90:], []*merged.File{file}), "ten outputs are too few")
	require.Empty(t, merged.Usual.Cover(outputs(200, "y"), []*merged.File{file}), "another version")

	changed := slices.Clone(all)
	changed[50] = outputs(200, "y")[50]
	require.Equal(t, []merged.Run{{From: 0, To: 50}, {From: 51, To: 100, First: 51}}, merged.Usual.Cover(changed, []*merged.File{file}))
	changed[50] = all[50]
	changed[50].Files++ // the same folder with other files, which never happens
	require.Len(t, merged.Usual.Cover(changed, []*merged.File{file}), 2)
	require.Equal(t, []merged.Run{{From: 0, To: 50}, {From: 50, To: 99, First: 51}}, merged.Usual.Cover(slices.Delete(slices.Clone(all), 50, 51), []*merged.File{file}))
	other := slices.Clone(all)
	other[20].Schema = "t"
	require.Len(t, merged.Usual.Cover(other, []*merged.File{file}), 2)
	require.Equal(t, []merged.Run{{From: 0, To: 150, File: 1}}, merged.Usual.Cover(all, []*merged.File{file, fileOf(all[:150])}), "the longer run")
	require.Empty(t, merged.Usual.Cover(make([]merged.Candidate, 100), []*merged.File{file}))
}

func TestGroups(t *testing.T) {
	t.Parallel()
	all := outputs(3000, "x")
	spans := func(read []merged.Candidate, files ...*merged.File) (found []string) {
		for _, g := range merged.Usual.Groups(read, files) {
			found = append(found, fmt.Sprint(g.From, "-", g.To, " ", g.Replaces))
		}
		return found
	}
	require.Equal(t, []string{"0-1024 []", "1024-2048 []", "2048-3000 []"}, spans(all))
	require.Empty(t, spans(all[:63]))
	require.Equal(t, []string{"0-64 []"}, spans(all[:64]))
	require.Empty(t, spans(all[:100], fileOf(all[:100])))
	require.Equal(t, []string{"0-164 [0]"}, spans(all[:164], fileOf(all[:100])), "the file grows")
	require.Equal(t, []string{"50-114 []"}, spans(all[50:164][:114], fileOf(all[:100])), "the reader reads a part of the file")
	require.Equal(t, []string{"1000-1100 []"}, spans(all[:1100], fileOf(all[:1000])), "both together are too many")

	changed := slices.Clone(all[:320])
	for i := range 10 {
		changed[i*32] = outputs(320, "y")[i*32]
	}
	require.Empty(t, spans(changed, fileOf(all[:320])), "single outputs between the runs")
	tenth := slices.Clone(all[:320])
	for i := range 32 {
		tenth[i], changed[i] = outputs(320, "y")[i], outputs(320, "y")[i]
	}
	require.Empty(t, spans(tenth, fileOf(all[:320])), "exactly a tenth")
	require.Equal(t, []string{"0-320 [0]"}, spans(changed, fileOf(all[:320])), "more than a tenth of the cells has changed")

	for name, change := range map[string]func(*merged.Candidate){
		"new":    func(c *merged.Candidate) { c.Fixed = false },
		"large":  func(c *merged.Candidate) { c.Bytes = merged.SmallBytes },
		"schema": func(c *merged.Candidate) { c.Schema = "t" },
		"empty":  func(c *merged.Candidate) { *c = merged.Candidate{} },
	} {
		some := slices.Clone(all[:128])
		change(&some[64])
		require.Equal(t, "0-64 []", spans(some)[0], name)
		require.Len(t, spans(some), 1, name)
	}
	for i := range all {
		all[i].Bytes = 1 << 20
	}
	require.Equal(t, "0-256 []", spans(all)[0])
}

func TestIndexSurvivesConcurrentWritersAndDamage(t *testing.T) {
	t.Parallel()
	store := memblob.New(memblob.Options{})
	prefix := merged.Prefix(ids.Domain{Tenant: "a", Workspace: "b"}, ids.AssetKey{Namespace: "n", Name: "m"})
	first, second := "01KAJ2T0000000000000000001", "01KAJ2T0000000000000000002"
	add := func(id string) func(*merged.Index) bool {
		return func(x *merged.Index) bool { x.Files = append(x.Files, merged.Entry{ID: id}); return true }
	}
	raced := false
	require.NoError(t, merged.Update(t.Context(), store, prefix, func(x *merged.Index) bool {
		if !raced {
			raced = true
			require.NoError(t, merged.Update(t.Context(), store, prefix, add(second)))
		}
		return add(first)(x)
	}))
	index, _, damaged, err := merged.Load(t.Context(), store, prefix)
	require.NoError(t, err)
	require.False(t, damaged)
	require.Equal(t, []merged.Entry{{ID: second}, {ID: first}}, index.Files)

	for _, text := range []string{"{", `{"version": 2}`, `{"version": 1, "files": [{"id": "../x"}]}`} {
		_, err = store.Put(t.Context(), merged.IndexKey(prefix), []byte(text))
		require.NoError(t, err)
		index, _, damaged, err = merged.Load(t.Context(), store, prefix)
		require.NoError(t, err)
		require.True(t, damaged)
		require.Empty(t, index.Files)
	}
	require.NoError(t, merged.Update(t.Context(), store, prefix, add(first)))
	_, _, damaged, err = merged.Load(t.Context(), store, prefix)
	require.NoError(t, err)
	require.False(t, damaged)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	d := ids.Domain{Tenant: "a", Workspace: "b"}
	prefix := merged.Prefix(d, ids.AssetKey{Namespace: "n", Name: "m"})
	const id = "01KAJ2T0000000000000000001"
	for _, key := range []string{merged.DataKey(prefix, id), merged.CellsKey(prefix, id)} {
		require.Equal(t, id, merged.IDOf(prefix, key))
	}
	require.Empty(t, merged.IDOf(prefix, merged.IndexKey(prefix)))
	require.Empty(t, merged.IDOf(prefix, prefix+"notes.json"))
	found, asset := merged.AssetOf(d, merged.IndexKey(prefix))
	require.Equal(t, [2]string{prefix, "n/m"}, [2]string{found, asset})
	for _, partition := range []string{"", `{"_merged":"x"}`, `{"date":"_merged"}`} {
		uri := contract.ExecutionPrefix(d, ids.AssetKey{Namespace: "n", Name: "m"}, partition, id, id, "n")
		found, _ = merged.AssetOf(d, uri+"_merged/x.parquet")
		require.Empty(t, found, "an output is no merged file")
	}
}

func TestCandidateOf(t *testing.T) {
	t.Parallel()
	m := contract.CommitMarker{
		MaterializationID: "m", URI: "u/", SchemaHash: "s", Columns: []contract.CommitMarkerColumn{{Name: "x", Type: "INTEGER"}},
		Files: []contract.CommitMarkerFile{{Name: "data.parquet", Size: 10, CRC32C: 7, Rows: 3}, {Name: "notes.txt", Size: 99}},
	}
	c := merged.CandidateOf("p", &m)
	require.Equal(t, []int64{10, 3}, []int64{c.Bytes, c.Rows})
	other := m
	other.Files = []contract.CommitMarkerFile{{Name: "data.parquet", Size: 10, CRC32C: 8, Rows: 3}}
	require.NotEqual(t, c.Cell, merged.CandidateOf("p", &other).Cell)
	for _, name := range []string{"servo cell", "FILE_INDEX", "Filename"} {
		other.Columns = []contract.CommitMarkerColumn{{Name: name, Type: "INTEGER"}}
		require.Zero(t, merged.CandidateOf("p", &other), name)
	}
	other.Columns = nil
	require.Zero(t, merged.CandidateOf("p", &other))
	m.Files = m.Files[1:]
	require.Zero(t, merged.CandidateOf("p", &m))
}
