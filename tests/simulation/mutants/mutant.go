package main

import (
	"fmt"
	"go/ast"
	"strings"
)

// mutant is a wrong edit: it replaces the only place in a function that matches a pattern.
type mutant struct {
	name        string
	pkg, fn     string // for example "./pkg/fold" and "(*Fold).begin"
	pattern     pattern
	replacement string
	by          string // the package whose tests must catch the mutant; "": the simulation
}

// parse reads the list: blocks separated by "---" lines. A block has a name, a function, and the
// pattern and its replacement, separated by a "=>" line.
func parse(text string) ([]mutant, error) {
	var mutants []mutant
	named := map[string]bool{}
	for block := range strings.SplitSeq(text, "\n---\n") {
		m, err := parseBlock(strings.TrimLeft(block, "\n"))
		if err != nil {
			return nil, fmt.Errorf("mutants.txt: %w", err)
		}
		if named[m.name] {
			return nil, fmt.Errorf("mutants.txt: two mutants are named %q", m.name)
		}
		named[m.name] = true
		mutants = append(mutants, m)
	}
	return mutants, nil
}

func parseBlock(block string) (mutant, error) {
	name, rest, ok1 := strings.Cut(block, "\n")
	where, rest, ok2 := strings.Cut(rest, "\n")
	before, after, ok3 := strings.Cut(rest+"\n", "\n=>\n")
	where, by, _ := strings.Cut(where, " by ")
	pkg, fn, ok4 := strings.Cut(where, " ")
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return mutant{}, fmt.Errorf("invalid block %.80q: expected name, package and function, pattern, =>, replacement", block)
	}
	p, err := parsePattern(before)
	if err != nil {
		return mutant{}, fmt.Errorf("%s: %w", name, err)
	}
	return mutant{name, "./" + pkg, fn, p, strings.TrimRight(after, "\n"), by}, nil
}

// located is a mutant with the place that it edits.
type located struct {
	mutant
	src source
	fn  *ast.FuncDecl
	at  place
}

// locate finds the place that each mutant edits. The pattern of each mutant must match exactly one place.
func locate(mutants []mutant) ([]located, error) {
	packages := map[string][]source{}
	var found []located
	for _, m := range mutants {
		files, ok := packages[m.pkg]
		if !ok {
			var err error
			if files, err = sources(m.pkg); err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			packages[m.pkg] = files
		}
		src, fn, err := function(files, m.fn)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w: correct mutants.txt", m.name, m.pkg, err)
		}
		places := m.pattern.find(src, fn.Body)
		if len(places) != 1 {
			return nil, fmt.Errorf("%s: %s in %s matches the pattern in %d places, want 1: correct mutants.txt",
				m.name, m.fn, src.path, len(places))
		}
		found = append(found, located{m, src, fn, places[0]})
	}
	return found, nil
}

// body returns the edited body of the mutant's function.
func (l located) body() string {
	from, to := l.src.offsets(l.fn.Body, l.fn.Body)
	edited := l.at.substituted(l.replacement)
	return l.src.data[from:l.at.from] + edited + l.src.data[l.at.to:to]
}

// branch returns a statement that runs the mutant's body instead of the original if the mutant is
// active. The body is in a function literal, so that its labels and named results do not clash with those of the
// original.
func (l located) branch() string {
	results, keyword := "", ""
	if r := l.fn.Type.Results; r != nil {
		results, keyword = l.src.resultList(r), "return "
	}
	call := fmt.Sprintf("%sfunc()%s %s()", keyword, results, l.body())
	if keyword == "" {
		call += "; return"
	}
	return fmt.Sprintf("if mutation.Active == %q { %s }; ", l.name, call)
}

func (s source) resultList(results *ast.FieldList) string {
	text := s.text(results, results)
	if results.Opening.IsValid() {
		return " " + text
	}
	return " (" + text + ")"
}
