package release_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/space"
)

func key(name string) ids.AssetKey { return ids.AssetKey{Namespace: "a", Name: name} }

// tree returns the syntax tree of a query. The parameter "rest" identifies the query without its columns. A column has
// the form "name=expression".
func tree(rest string, columns ...string) *plan.Tree {
	t := &plan.Tree{Rest: rest, Hash: rest, Extensible: true}
	for _, c := range columns {
		t.Hash += "," + c
		t.Columns = append(t.Columns, plan.TreeColumn{Name: c[:1], Hash: c})
	}
	return t
}

// assets returns three assets: a has daily partitions, b reads a, and c executes a command.
func assets() []plan.Asset {
	list := []plan.Asset{
		{
			Key: key("a"), Work: plan.Work{SQL: "SELECT 1", Dimensions: map[string]string{"date": "DATE"}}, Text: plan.Text{Tree: tree("f", "x=1", "y=2")},
			Partitions: space.Days("2025-01-01", ""),
		},
		{Key: key("b"), Work: plan.Work{SQL: "SELECT 2"}, Deps: []ids.AssetKey{key("a")}, Text: plan.Text{Tree: tree("g", "z=1")}},
		{
			Key: key("c"), Work: plan.Work{Command: []string{"sh", "x.sh"}, Vars: map[string]plan.Var{"days": {Type: "integer", Value: "7"}}},
			Text: plan.Text{Files: map[string]string{"x.sh": "1"}},
		},
	}
	release.SetCodes(list)
	return list
}

// inZone returns a partition space of days in a time zone.
func inZone(zone string) *space.Space {
	return space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01", Timezone: zone})
}

func compile(t *testing.T, list []plan.Asset, previous *release.Compiled) *release.Compiled {
	t.Helper()
	release.SetCodes(list)
	c, err := release.Compile(release.Input{Settings: release.Settings{Project: "p"}, Assets: list, Parser: "1"}, previous, nil)
	require.NoError(t, err)
	return c
}

func TestCompileIsDeterministicAndDecodes(t *testing.T) {
	one, two := compile(t, assets(), nil), compile(t, assets(), nil)
	require.Equal(t, one.SHA, two.SHA)
	r, err := release.Decode(one.Data, one.SHA)
	require.NoError(t, err)
	require.Equal(t, one.Release, r)
	code, err := release.DecodeCode(one.Encoded, r.Code)
	require.NoError(t, err)
	require.Equal(t, one.Code, code)
	require.Equal(t, assets(), code.Assets)
	_, err = release.Decode(append(slices.Clone(one.Data), ' '), one.SHA)
	require.ErrorContains(t, err, "it is damaged")
}

// TestCodeCoversExactlyWhatDecidesTheBytes changes one field at a time. A change of a field that decides the bytes of
// an output must change the code fingerprint; a change of any other field must not.
func TestCodeCoversExactlyWhatDecidesTheBytes(t *testing.T) {
	before := assets()
	for name, c := range map[string]struct {
		change func([]plan.Asset)
		codes  string // the assets whose code changes
		policy string
	}{
		"tree":  {func(l []plan.Asset) { l[0].Text.Tree = tree("f", "x=1", "y=3") }, "a", ""},
		"text":  {func(l []plan.Asset) { l[0].Work.SQL = "select 1" }, "", ""},
		"place": {func(l []plan.Asset) { l[0].File, l[0].Query.Line = "z.sql", 9 }, "", ""},
		"zone":  {func(l []plan.Asset) { l[0].Partitions = inZone("Asia/Tokyo") }, "ab", "a"},
		"range": {func(l []plan.Asset) {
			l[0].Partitions = space.Days("2024-01-01", "2026-01-01")
		}, "b", "a"}, // b reads all partitions of a
		"partition columns": {func(l []plan.Asset) { l[0].NoPartitionColumns = true }, "b", "a"}, // rows that b reads from a have these columns
		"UTC":               {func(l []plan.Asset) { l[0].Partitions = inZone("UTC") }, "", "a"},
		"mapping":           {func(l []plan.Asset) { l[1].Reads = []plan.Dep{{Asset: key("a"), Map: space.Map{Op: space.Latest}}} }, "b", ""},
		"no dependency":     {func(l []plan.Asset) { l[1].Deps = nil }, "b", ""},
		"command":           {func(l []plan.Asset) { l[2].Work.Command = []string{"sh", "x.sh", "-v"} }, "c", ""},
		"file":              {func(l []plan.Asset) { l[2].Text.Files = map[string]string{"x.sh": "2"} }, "c", ""},
		"env":               {func(l []plan.Asset) { l[2].Work.Env = map[string]string{"A": "1"} }, "c", ""},
		"secret":            {func(l []plan.Asset) { l[2].Work.Secrets = map[string]string{"T": "file:t"} }, "c", "c"},
		"uses":              {func(l []plan.Asset) { l[0].Work.External = []plan.External{{Extension: "excel"}} }, "a", "a"},
		"variable":          {func(l []plan.Asset) { l[2].Work.Vars = map[string]plan.Var{"days": {Type: "integer", Value: "8"}} }, "c", ""},
		"type of variable":  {func(l []plan.Asset) { l[2].Work.Vars = map[string]plan.Var{"days": {Type: "string", Value: "7"}} }, "c", ""},
		"input format":      {func(l []plan.Asset) { l[2].Work.InputFormat = plan.FormatCSV }, "c", ""},
		"default format":    {func(l []plan.Asset) { l[2].Work.InputFormat = plan.FormatParquet }, "", ""},
		"output":            {func(l []plan.Asset) { l[2].Work.Output = plan.OutputNone }, "c", ""},
		"files":             {func(l []plan.Asset) { l[2].Work.Text = &plan.TextOutput{Format: plan.TextNone} }, "c", ""},
		"resources":         {func(l []plan.Asset) { l[2].Work.Resources = &plan.Resources{Threads: 2} }, "", "c"},
		"version":           {func(l []plan.Asset) { l[2].Text.Version = "1" }, "c", ""},
		"retries":           {func(l []plan.Asset) { l[2].Retries.MaxAttempts = 9 }, "", "c"},
		"pool, description": {func(l []plan.Asset) { l[1].Pool, l[1].Description = "p", "d" }, "", "b"},
	} {
		after := assets()
		c.change(after)
		was, is := compile(t, before, nil), compile(t, after, nil)
		codes, policies := "", ""
		for i := range was.Assets {
			if was.Assets[i].Code != is.Assets[i].Code {
				codes += was.Assets[i].Key[2:]
			}
			if was.Assets[i].Policy != is.Assets[i].Policy {
				policies += was.Assets[i].Key[2:]
			}
		}
		require.Equal(t, c.codes, codes, name)
		require.Equal(t, c.policy, policies, name)
		diff := release.Diff(was.Code, is.Code)
		changed := ""
		for _, d := range diff {
			changed += d.Asset[2:]
			if d.Kind == release.Breaking {
				require.NotEmpty(t, append(d.Reasons, columnsOf(d)...), name)
			}
		}
		require.Subset(t, []byte(changed), append([]byte(codes), policies...), name)
		require.Len(t, changed, len(unique(codes+policies)), name)
	}
}

// The URL prefixes that an extension may read are part of the policy fingerprint, not of the code fingerprint. So an
// additional prefix makes no partition stale.
func TestPrefixesArePolicy(t *testing.T) {
	was, is := assets(), assets()
	was[0].Work.External = []plan.External{{Extension: "httpfs", Prefixes: []string{"s3://a/"}}}
	is[0].Work.External = []plan.External{{Extension: "httpfs", Prefixes: []string{"s3://a/", "s3://b/"}}}
	before, after := compile(t, was, nil), compile(t, is, nil)
	require.Equal(t, before.Assets[0].Code, after.Assets[0].Code)
	require.NotEqual(t, before.Assets[0].Policy, after.Assets[0].Policy)
	require.NotEqual(t, before.SHA, after.SHA, "workers must get the new prefixes")
}

func columnsOf(c release.Change) (names []string) {
	for _, column := range c.Columns {
		names = append(names, column.Name)
	}
	return names
}

func unique(s string) []byte {
	b := []byte(s)
	slices.Sort(b)
	return slices.Compact(b)
}

func TestVersionStandsForTheText(t *testing.T) {
	list := assets()
	list[0].Text.Version, list[2].Text.Version = "1", "1"
	before := compile(t, list, nil)
	list[0].Text.Tree, list[0].Work.SQL = tree("other", "x=1"), "SELECT 9"
	list[2].Work.Command, list[2].Text.Files = []string{"other"}, nil
	require.Empty(t, release.Diff(before.Code, compile(t, list, nil).Code))
	list[2].Work.Vars = nil
	require.Equal(t, []string{"variable days"}, release.Diff(before.Code, compile(t, list, nil).Code)[0].Reasons)
}

func TestCarryOverSurvivesAnUpgradeOfTheParser(t *testing.T) {
	before := compile(t, assets(), nil)
	// The new parser returns other trees for the same texts. The query of b was reformatted, too.
	list := assets()
	list[0].Text.Tree, list[1].Text.Tree, list[1].Work.SQL = tree("f2", "x=1", "y=2"), tree("g2", "z=1"), "select 2"
	release.SetCodes(list)
	in := release.Input{Assets: list, Parser: "2"}
	keys, queries := release.Reparse(before.Code, "2")
	require.Equal(t, []string{"SELECT 1", "SELECT 2"}, queries)
	require.Len(t, keys, 2)
	trees := map[ids.AssetKey]*plan.Tree{key("a"): tree("f2", "x=1", "y=2"), key("b"): tree("g2", "z=1")}
	after, err := release.Compile(in, before, trees)
	require.NoError(t, err)
	for i := range after.Assets {
		require.Equal(t, before.Assets[i].Code, after.Assets[i].Code)
	}
	require.Empty(t, release.Diff(before.Code.WithTrees("2", trees), after.Code))
	// The next release also keeps the fingerprints.
	again, err := release.Compile(in, after, nil)
	require.NoError(t, err)
	require.Equal(t, after.SHA, again.SHA)
	// A change of the query's meaning results in another fingerprint.
	list[1].Text.Tree = tree("g2", "z=2")
	list[1].Work.SQL = "select 3"
	release.SetCodes(list)
	changed, err := release.Compile(release.Input{Assets: list, Parser: "2"}, before, trees)
	require.NoError(t, err)
	require.NotEqual(t, before.Assets[1].Code, changed.Assets[1].Code)
	require.Equal(t, before.Assets[0].Code, changed.Assets[0].Code)
}

// A query contains the name of an attached database. The code fingerprint must cover the database's file, because the
// rows come from it.
func TestCodeCoversAttachedDatabasesOfQuery(t *testing.T) {
	code := func(attach map[string]string) string {
		list := assets()
		list[0].Work.SQL = "SELECT * FROM CRM.customers"
		list[0].Work.External = []plan.External{{Extension: plan.ExtensionSQLite, Attach: attach}}
		return compile(t, list, nil).Assets[0].Code
	}
	old := code(map[string]string{"crm": "crm-2025.sqlite"})
	require.NotEqual(t, old, code(map[string]string{"crm": "crm-2026.sqlite"}))
	require.Equal(t, old, code(map[string]string{"crm": "crm-2025.sqlite", "erp": "erp.sqlite"}), "the query does not read erp")
}

func TestBrokenAssetsKeepTheirDeployedDefinition(t *testing.T) {
	before := compile(t, assets(), nil)
	list := assets()
	list[0].Broken, list[0].Work.SQL, list[0].Text = "x.sql has problems", "", plan.Text{}
	require.Equal(t, before.SHA, compile(t, list, before).SHA)
	require.Len(t, compile(t, list, nil).Assets, 2)
}

func TestDiffNamesColumns(t *testing.T) {
	positional := tree("f", "x=1", "y=2")
	positional.Positional = true
	closed := tree("f", "x=1", "y=2")
	closed.Extensible = false
	for name, c := range map[string]struct {
		from, to *plan.Tree
		kind     string
		columns  []release.ColumnChange
	}{
		"changed":           {nil, tree("f", "x=1", "y=3"), release.Breaking, []release.ColumnChange{{Name: "y", Kind: "changed"}}},
		"appended":          {nil, tree("f", "x=1", "y=2", "z=3"), release.NonBreaking, []release.ColumnChange{{Name: "z", Kind: release.Added}}},
		"inserted":          {nil, tree("f", "z=3", "x=1", "y=2"), release.NonBreaking, []release.ColumnChange{{Name: "z", Kind: release.Added}}},
		"shifted positions": {positional, tree("f", "z=3", "x=1", "y=2"), release.Breaking, []release.ColumnChange{{Name: "z", Kind: release.Added}}},
		"not extensible":    {closed, tree("f", "x=1", "y=2", "z=3"), release.Breaking, []release.ColumnChange{{Name: "z", Kind: release.Added}}},
		"removed":           {nil, tree("f", "x=1"), release.Breaking, []release.ColumnChange{{Name: "y", Kind: release.Removed}}},
		"reordered":         {nil, tree("f", "y=2", "x=1"), release.Breaking, nil},
		"filtered":          {nil, tree("other", "x=1", "y=2"), release.Breaking, nil},
	} {
		old, now := assets(), assets()
		if c.from != nil {
			old[0].Text.Tree = c.from
		}
		now[0].Text.Tree = c.to
		diff := release.Diff(compile(t, old, nil).Code, compile(t, now, nil).Code)
		require.Len(t, diff, 1, name)
		require.Equal(t, c.kind, diff[0].Kind, name)
		require.Equal(t, c.columns, diff[0].Columns, name)
	}
	diff := release.Diff(nil, compile(t, assets(), nil).Code)
	require.Equal(t, release.Counts{Added: 3}, release.Count(diff))
	diff = release.Diff(compile(t, assets(), nil).Code, nil)
	require.Equal(t, release.Counts{Removed: 3}, release.Count(diff))
}

// TestAssetsAreData fails if an asset has a field that JSON cannot store.
func TestAssetsAreData(t *testing.T) {
	list := assets()
	data, err := json.Marshal(list)
	require.NoError(t, err)
	var back []plan.Asset
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, list, back)
}

// BenchmarkCompile compiles a project of 1,000 assets, without loading it.
func BenchmarkCompile(b *testing.B) {
	list := make([]plan.Asset, 0, 1000)
	for i := range 1000 {
		k := key(fmt.Sprintf("x%04d", i))
		t := tree("f", "x=1", "y=2", "z=3")
		t.Hash += k.Name
		a := plan.Asset{Key: k, Work: plan.Work{SQL: strings.Repeat("SELECT x, y, z FROM a.x0001\n", 40)}, Text: plan.Text{Tree: t}}
		for j := max(0, i-3); j < i; j++ {
			a.Deps = append(a.Deps, list[j].Key)
		}
		list = append(list, a)
	}
	for b.Loop() {
		release.SetCodes(list)
		_, err := release.Compile(release.Input{Assets: list, Parser: "1"}, nil, nil)
		require.NoError(b, err)
	}
}
