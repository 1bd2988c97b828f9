package main

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

const sample = `package p

func (t *T[K]) f(a, b int) (n int, err error) {
	if a < b { // as it should be
		return a, nil
	}
	switch {
	case a == 7:
		g(a, b)
		h()
		return b, nil
	}
	return n, err
}

func g(a, b int) { h() }
`

func parsed(t *testing.T) source {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", sample, parser.SkipObjectResolution)
	require.NoError(t, err)
	return source{"sample.go", sample, fset, file}
}

func TestPatternMatchesShapes(t *testing.T) {
	for pattern, want := range map[string][]string{
		"a  <  b":                             {"a < b"},
		"g(_x, b); h()":                       {"g(a, b)\n\t\th()"},
		"if a < b {\n\t__\n}":                 {"if a < b { // as it should be\n\t\treturn a, nil\n\t}"},
		"return _v, nil":                      {"return a, nil", "return b, nil"},
		"case a == 7:\n\t__\n\treturn b, nil": {"case a == 7:\n\t\tg(a, b)\n\t\th()\n\t\treturn b, nil"},
		"_x == _x":                            nil,
		"g(b, a)":                             nil,
	} {
		t.Run(pattern, func(t *testing.T) {
			src := parsed(t)
			_, fn, err := function([]source{src}, "(*T).f")
			require.NoError(t, err)
			p, err := parsePattern(pattern)
			require.NoError(t, err)
			var found []string
			for _, at := range p.find(src, fn.Body) {
				found = append(found, sample[at.from:at.to])
			}
			require.Equal(t, want, found)
		})
	}
}

func TestMutantsOfOneFileAreBranches(t *testing.T) {
	src := parsed(t)
	var all []located
	for _, m := range []struct{ name, fn, old, replacement string }{
		{"first", "(*T).f", "a < b", "a > b"},
		{"second", "(*T).f", "case a == 7:\n\t__", "case a == 8:\n\t__"},
		{"third", "g", "h()", ""},
	} {
		_, fn, err := function([]source{src}, m.fn)
		require.NoError(t, err)
		p, err := parsePattern(m.old)
		require.NoError(t, err)
		places := p.find(src, fn.Body)
		require.Len(t, places, 1)
		all = append(all, located{mutant{name: m.name, replacement: m.replacement}, src, fn, places[0]})
	}
	text := editedFiles("example.com/m", all)["sample.go"]
	_, err := parser.ParseFile(token.NewFileSet(), "", text, 0)
	require.NoError(t, err, text)
	for _, part := range []string{
		`package p; import mutation "example.com/m/internal/mutation"`,
		`if mutation.Active == "first" { return func() (n int, err error) {`,
		"case a == 8:\n\tg(a, b)\n\t\th()\n\t\treturn b, nil",
		`if mutation.Active == "third" { func() {  }(); return };  h() }`,
	} {
		require.Contains(t, text, part)
	}
}
