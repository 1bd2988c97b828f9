package selector_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/selector"
)

func key(t testing.TB, text string) ids.AssetKey {
	t.Helper()
	k, err := ids.ParseAssetKey(text)
	require.NoError(t, err)
	return k
}

// shop is a small project: the chain raw/events, clean/events, clean/daily, mart/daily, mart/report, and raw/users.
func shop(t testing.TB) *selector.Catalog {
	t.Helper()
	asset := func(name string, tags, owners []string, deps ...string) plan.Asset {
		a := plan.Asset{Key: key(t, name), Tags: tags, Owners: owners}
		for _, dep := range deps {
			a.Deps = append(a.Deps, key(t, dep))
		}
		return a
	}
	return selector.NewCatalog([]plan.Asset{
		asset("mart/report", []string{"gold"}, []string{"ana"}, "mart/daily"),
		asset("mart/daily", []string{"gold", "two words"}, nil, "clean/daily", "raw/users"),
		asset("clean/daily", nil, []string{"bo+x@example.com"}, "clean/events"),
		asset("clean/events", nil, nil, "raw/events"),
		asset("raw/events", []string{"pii"}, nil),
		asset("raw/users", []string{"pii"}, nil),
	})
}

func texts(keys []ids.AssetKey) string {
	var found []string
	for _, k := range keys {
		found = append(found, k.String())
	}
	return strings.Join(found, " ")
}

func parse(t testing.TB, text string) *selector.Selection {
	t.Helper()
	s, err := selector.Parse(text)
	require.NoError(t, err)
	return s
}

func TestSelectMatchesTheTable(t *testing.T) {
	c := shop(t)
	for text, want := range map[string]string{
		"clean/daily":                        "clean/daily",
		"clean.daily":                        "clean/daily",
		"users":                              "raw/users",
		"clean/*":                            "clean/daily clean/events",
		"clean.*":                            "clean/daily clean/events",
		"*/daily":                            "clean/daily mart/daily",
		"raw/ev*":                            "raw/events",
		"raw/*e*s":                           "raw/events raw/users",
		"not *":                              "",
		"* and not raw/*":                    "clean/daily clean/events mart/daily mart/report",
		"tag:gold":                           "mart/daily mart/report",
		`tag:"two words"`:                    "mart/daily",
		"owner:ana":                          "mart/report",
		`owner:"bo+x@example.com"`:           "clean/daily",
		"+clean/daily":                       "clean/daily clean/events raw/events",
		"clean/daily+":                       "clean/daily mart/daily mart/report",
		"+clean/daily+":                      "clean/daily clean/events mart/daily mart/report raw/events",
		"1+mart/report":                      "mart/daily mart/report",
		"2+mart/report":                      "clean/daily mart/daily mart/report raw/users",
		"raw/events+2":                       "clean/daily clean/events raw/events",
		"1+clean/daily+1":                    "clean/daily clean/events mart/daily",
		"+tag:gold and not raw/*":            "clean/daily clean/events mart/daily mart/report",
		"(raw/* and tag:pii)+":               "clean/daily clean/events mart/daily mart/report raw/events raw/users",
		"users or raw/events and not tag:x":  "",
		"users or raw/events and not report": "raw/events raw/users",
		"not (raw/* or clean/*)":             "mart/daily mart/report",
		"not not users":                      "raw/users",
	} {
		r, err := c.Select(selector.Query{Include: parse(t, text)})
		if want == "" {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want, texts(r.Keys), text)
	}
}

func TestSelectReturnsNamedAssetsAndRoots(t *testing.T) {
	c := shop(t)
	r, err := c.Select(selector.Query{
		Include:  selector.Union(parse(t, "+report"), parse(t, "raw/* and not users")),
		Exclude:  parse(t, "clean/events"),
		Upstream: true,
	})
	require.NoError(t, err)
	require.Equal(t, "clean/daily mart/daily mart/report raw/events raw/users", texts(r.Keys))
	require.Equal(t, "mart/report", texts(r.Named))
	require.Equal(t, "mart/report raw/events", texts(r.Roots))

	r, err = c.Select(selector.Query{Include: parse(t, "users"), Downstream: true})
	require.NoError(t, err)
	require.Equal(t, "mart/daily mart/report raw/users", texts(r.Keys))
}

func TestSelectReportsMistakes(t *testing.T) {
	c := shop(t)
	for text, want := range map[string]string{
		"raw/evnts":        `unknown asset "raw/evnts": did you mean raw/events?`,
		"raw.evnts":        `unknown asset "raw/evnts": did you mean raw/events?`,
		"repotr":           `unknown asset "repotr": did you mean report?`,
		"nothing/like_it":  "unknown asset \"nothing/like_it\": list the assets with `servo assets`",
		"daily":            `ambiguous name "daily": clean/daily, mart/daily: write the namespace`,
		"tag:glod":         `selection "tag:glod" matches no asset: did you mean tag:gold?`,
		"tag:twowords":     `selection "tag:twowords" matches no asset: did you mean tag:"two words"?`,
		"* and not tag:x":  "selection \"tag:x\" matches no asset: list the assets with `servo assets`",
		"owner:anna":       `selection "owner:anna" matches no asset: did you mean owner:ana?`,
		"raw/x*":           "selection \"raw/x*\" matches no asset: list the assets with `servo assets`",
		"users and report": "selection \"users and report\" matches no asset: list the assets with `servo assets`",
	} {
		_, err := c.Select(selector.Query{Include: parse(t, text)})
		require.EqualError(t, err, want)
		require.ErrorAs(t, err, new(*selector.Error))
	}
	_, err := c.Select(selector.Query{Include: parse(t, "raw/*"), Exclude: parse(t, "tag:pii")})
	require.EqualError(t, err, "selection \"raw/* without tag:pii\" matches no asset: list the assets with `servo assets`")
}

func TestParseReportsMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "the selection is empty: name an asset, or write * for all of them",
		"a/b AND c/d":        `invalid selection "a/b AND c/d": unexpected "AND" at character 5: join selections with "and", "or", or "and not"`,
		"(a/b":               `invalid selection "(a/b": a ( is not closed at character 1: add )`,
		"a/b)":               `invalid selection "a/b)": unexpected ) at character 4: remove it, or add ( before it`,
		"a/b and":            `invalid selection "a/b and": the selection ends at character 8: add an asset, a pattern or tag:NAME`,
		"and":                `invalid selection "and": unexpected "and" at character 1: write an asset, a pattern or tag:NAME here`,
		"tags:x":             `invalid selection "tags:x": unknown selector "tags:" at character 1: write tag:NAME or owner:NAME`,
		"tag:":               `invalid selection "tag:": tag: has no value at character 1: write tag:NAME`,
		`tag:"x`:             `invalid selection "tag:\"x": a quote is not closed at character 5: add "`,
		"Weather":            `invalid selection "Weather": invalid asset name "Weather" at character 1: write namespace/name with a-z, 0-9 and _`,
		"ev*":                `invalid selection "ev*": a pattern without a namespace, "ev*" at character 1: write */ev*`,
		"a/b[date=2025-1-1]": `invalid selection "a/b[date=2025-1-1]": a task key "a/b[date=2025-1-1]" at character 1: name the asset, and select its partitions with -p or the field partitions`,
		"+ a/b":              `invalid selection "+ a/b": a + without an asset after it at character 1: write +raw/x for an asset and its upstream`,
		"a/b+0":              `invalid selection "a/b+0": invalid number of levels "0" at character 5: write 1 or more, or nothing for all levels`,
		"a/b ++":             `invalid selection "a/b ++": unexpected "+" at character 5: join selections with "and", "or", or "and not"`,
		`"a/b"`:              `invalid selection "\"a/b\"": quotes around "\"a/b\"" at character 1: quotes are for values of tag: and owner:`,
		"\xff":               "invalid selection: it is not UTF-8 text",
	} {
		_, err := selector.Parse(text)
		require.EqualError(t, err, want, text)
		require.ErrorAs(t, err, new(*selector.Error))
	}
	_, err := selector.Parse(strings.Repeat("a", selector.MaxBytes+1))
	require.ErrorContains(t, err, "at most 4096 are allowed")
	_, err = selector.Parse("a/b" + strings.Repeat(" or a/b", selector.MaxOperands))
	require.ErrorContains(t, err, "the selection has 101 operands: at most 100 are allowed")
}

func TestParseReturnsCanonicalText(t *testing.T) {
	for text, want := range map[string]string{
		" a.b  or( c/d and(e/*) )":  "a/b or c/d and e/*",
		"(a/b or c/d) and not(e/f)": "(a/b or c/d) and not e/f",
		"a/b or (c/d or e/f)":       "a/b or (c/d or e/f)",
		"+(a/b)+":                   "+a/b+",
		"(+a/b)+":                   "(+a/b)+",
		"+(not a/b)":                "+(not a/b)",
		"2+2":                       "2+2",
		"2+":                        "2+",
		"not not 3+a/b+4":           "not not 3+a/b+4",
		`tag:"x" or tag:"a b"`:      `tag:x or tag:"a b"`,
	} {
		require.Equal(t, want, parse(t, text).String())
		require.Equal(t, want, parse(t, want).String())
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "a/b", "2+a/b+3 and not (tag:x or owner:\"y z\")", "((((", "++", "not not", "*/a*b*", "1+1+1", "\"", "a.b.c", "tag:\"\"", "é+\x00",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := selector.Parse(text)
		if err != nil {
			require.ErrorAs(t, err, new(*selector.Error))
			require.NotContains(t, err.Error(), "\n")
			return
		}
		canonical := s.String()
		if len(canonical) > selector.MaxBytes {
			return
		}
		again, err := selector.Parse(canonical)
		require.NoError(t, err)
		require.Equal(t, canonical, again.String())
	})
}

// node is a selection in two forms: as text, and as a function that evaluates it naively.
type node struct {
	text  string
	match func(ids.AssetKey) bool
}

// forest returns random assets, and their dependencies by key.
func forest(r *rand.Rand, n, edges int) ([]plan.Asset, map[ids.AssetKey][]ids.AssetKey) {
	assets := make([]plan.Asset, n)
	deps := map[ids.AssetKey][]ids.AssetKey{}
	for i := range assets {
		assets[i].Key = ids.AssetKey{Namespace: fmt.Sprintf("n%d", i%7), Name: fmt.Sprintf("a%d", i)}
		assets[i].Tags = []string{fmt.Sprintf("t%d", i%5)}
		assets[i].Owners = []string{fmt.Sprintf("o%d", i%3)}
	}
	for range edges {
		from, to := r.IntN(n), r.IntN(n)
		if from > to {
			a := &assets[from]
			a.Deps = append(a.Deps, assets[to].Key)
			deps[a.Key] = append(deps[a.Key], assets[to].Key)
		}
	}
	r.Shuffle(n, func(i, j int) { assets[i], assets[j] = assets[j], assets[i] })
	return assets, deps
}

// within reports whether a path of at most the given number of dependencies leads from one asset to another. The empty
// path leads from an asset to itself.
func within(deps map[ids.AssetKey][]ids.AssetKey, from, to ids.AssetKey, levels int) bool {
	if from == to {
		return true
	}
	if levels == 0 {
		return false
	}
	for _, dep := range deps[from] {
		if within(deps, dep, to, levels-1) {
			return true
		}
	}
	return false
}

// draw returns a random selection and a naive evaluation of it.
func draw(r *rand.Rand, assets []plan.Asset, deps map[ids.AssetKey][]ids.AssetKey, depth int) node {
	operation := r.IntN(9)
	if depth == 0 {
		operation = r.IntN(4)
	}
	sub := func() node { return draw(r, assets, deps, depth-1) }
	switch operation {
	case 0:
		k := assets[r.IntN(len(assets))].Key
		return node{k.String(), func(x ids.AssetKey) bool { return x == k }}
	case 1:
		k := assets[r.IntN(len(assets))].Key
		return node{k.Name, func(x ids.AssetKey) bool { return x == k }}
	case 2:
		namespace := assets[r.IntN(len(assets))].Key.Namespace
		return node{namespace + "/*", func(x ids.AssetKey) bool { return x.Namespace == namespace }}
	case 3:
		tag := assets[r.IntN(len(assets))].Tags[0]
		tagged := map[ids.AssetKey]bool{}
		for i := range assets {
			tagged[assets[i].Key] = assets[i].Tags[0] == tag
		}
		return node{"tag:" + tag, func(x ids.AssetKey) bool { return tagged[x] }}
	case 4:
		a, b := sub(), sub()
		return node{"(" + a.text + ") and (" + b.text + ")", func(x ids.AssetKey) bool { return a.match(x) && b.match(x) }}
	case 5:
		a, b := sub(), sub()
		return node{a.text + " or " + b.text, func(x ids.AssetKey) bool { return a.match(x) || b.match(x) }}
	case 6:
		a := sub()
		return node{"not (" + a.text + ")", func(x ids.AssetKey) bool { return !a.match(x) }}
	}
	a := sub()
	levels := 1 + r.IntN(3)
	reaches := func(x ids.AssetKey, up bool) bool {
		for i := range assets {
			from, to := assets[i].Key, x
			if !up {
				from, to = x, from
			}
			if a.match(assets[i].Key) && within(deps, from, to, levels) {
				return true
			}
		}
		return false
	}
	if operation == 7 {
		return node{fmt.Sprintf("%d+(%s)", levels, a.text), func(x ids.AssetKey) bool { return reaches(x, true) }}
	}
	return node{fmt.Sprintf("(%s)+%d", a.text, levels), func(x ids.AssetKey) bool { return reaches(x, false) }}
}

func TestSelectEqualsANaiveEvaluation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		assets, deps := forest(r, 2+r.IntN(70), r.IntN(90))
		n := draw(r, assets, deps, 3)
		var want []ids.AssetKey
		for i := range assets {
			if n.match(assets[i].Key) {
				want = append(want, assets[i].Key)
			}
		}
		got, err := selector.NewCatalog(assets).Select(selector.Query{Include: parse(t, n.text)})
		if len(want) == 0 {
			require.ErrorContains(t, err, "matches no asset", n.text)
			continue
		}
		require.NoError(t, err, n.text)
		require.ElementsMatch(t, want, got.Keys, n.text)
		require.Subset(t, got.Keys, got.Named, n.text)
		require.Subset(t, got.Keys, got.Roots, n.text)
	}
}

// BenchmarkSelect measures a selection of 100 operands on 10,000 assets with 40,000 edges. The
// budget is 10 ms.
func BenchmarkSelect(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	assets, _ := forest(r, 10_000, 80_000) // about half of the edges would point downstream; forest drops them
	var operands []string
	for i := range selector.MaxOperands {
		operands = append(operands, []string{"n1/*", "tag:t2", "+a%d", "not owner:o1"}[i%4])
		operands[i] = strings.ReplaceAll(operands[i], "%d", fmt.Sprint(i))
	}
	text := strings.Join(operands, " or ")
	for b.Loop() {
		_, err := selector.NewCatalog(assets).Select(selector.Query{Include: parse(b, text), Upstream: true})
		require.NoError(b, err)
	}
}
