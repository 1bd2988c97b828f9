package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strings"
)

// pattern is a piece of Go: an expression, consecutive statements, or clauses of a switch. Layout and comments do not
// matter. An identifier that begins with an underscore and a letter, such as _x, matches any expression or statement.
// Each occurrence of the identifier must match the same text. A double underscore matches any number of statements.
type pattern struct {
	nodes []ast.Node // an expression, or a list of statements or clauses
}

// place is a match of a pattern: offsets in the file, and the text of each wildcard.
type place struct {
	from, to int
	bound    map[string]string
}

const listWildcard = "__"

var wildcards = regexp.MustCompile(`\b(__|_[a-z]\w*)\b`)

// parsePattern parses a pattern.
func parsePattern(text string) (pattern, error) {
	if e, err := parser.ParseExpr(text); err == nil {
		return pattern{[]ast.Node{e}}, nil
	}
	clauses, err := parseBody("switch {\n" + text + "\n}")
	if err == nil {
		if s, ok := clauses[0].(*ast.SwitchStmt); ok {
			return pattern{asNodes(s.Body.List)}, nil
		}
	}
	statements, err := parseBody(text)
	if err != nil {
		return pattern{}, fmt.Errorf("%q is neither an expression nor statements nor clauses: %w", text, err)
	}
	return pattern{asNodes(statements)}, nil
}

func parseBody(text string) ([]ast.Stmt, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+text+"\n}", parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	fn, ok := file.Decls[0].(*ast.FuncDecl)
	if !ok || len(file.Decls) != 1 || len(fn.Body.List) == 0 {
		return nil, fmt.Errorf("%q contains no statements", text)
	}
	return fn.Body.List, nil
}

func asNodes[N ast.Node](list []N) []ast.Node {
	nodes := make([]ast.Node, len(list))
	for i, n := range list {
		nodes[i] = n
	}
	return nodes
}

// find returns every place in a function's body that matches the pattern.
func (p pattern) find(src source, body *ast.BlockStmt) []place {
	var places []place
	try := func(nodes []ast.Node) {
		m := matcher{src: src, bound: map[string]string{}}
		if m.list(p.nodes, nodes, true) {
			from, to := src.offsets(nodes[0], nodes[m.used-1])
			places = append(places, place{from, to, m.bound})
		}
	}
	_, single := p.nodes[0].(ast.Expr)
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case ast.Expr:
			if single {
				try([]ast.Node{n})
			}
		case *ast.BlockStmt:
			tryFrom(n.List, try, single)
		case *ast.IfStmt:
			tryFrom(inits(n.Init), try, single)
		case *ast.SwitchStmt:
			tryFrom(inits(n.Init), try, single)
		case *ast.CaseClause:
			tryFrom(n.Body, try, single)
		case *ast.CommClause:
			tryFrom(n.Body, try, single)
		}
		return true
	})
	return places
}

func inits(s ast.Stmt) []ast.Stmt {
	if s == nil {
		return nil
	}
	return []ast.Stmt{s}
}

// tryFrom calls the function try with every suffix of a list of statements. If single is true, the pattern is an
// expression, and tryFrom does nothing.
func tryFrom(list []ast.Stmt, try func([]ast.Node), single bool) {
	for i := range list {
		if !single {
			try(asNodes(list[i:]))
		}
	}
}

// substituted returns the text with the wildcards replaced by their matches.
func (p place) substituted(text string) string {
	return wildcards.ReplaceAllStringFunc(text, func(name string) string {
		if bound, ok := p.bound[name]; ok {
			return bound
		}
		return name
	})
}

// matcher compares the shapes of nodes, and records the matches of wildcards.
type matcher struct {
	src   source
	bound map[string]string
	used  int // number of nodes that the outermost list matched
}

// list matches nodes with patterns, in order. If prefix is true, the list of nodes may be longer than the list of
// patterns.
func (m *matcher) list(patterns, nodes []ast.Node, prefix bool) bool {
	all := len(nodes)
	for i, p := range patterns {
		if isWildcard(p, listWildcard) {
			return m.rest(patterns[i+1:], nodes)
		}
		if len(nodes) == 0 || !m.node(p, nodes[0]) {
			return false
		}
		nodes = nodes[1:]
	}
	if prefix {
		m.used = all - len(nodes)
	}
	return prefix || len(nodes) == 0
}

// rest matches the list wildcard (a double underscore) and the patterns after it with nodes. The patterns after the
// wildcard must match the last nodes. The wildcard matches all nodes before these.
func (m *matcher) rest(after, nodes []ast.Node) bool {
	n := len(nodes) - len(after)
	if n < 0 || !m.list(after, nodes[n:], false) {
		return false
	}
	text := ""
	if n > 0 {
		text = m.src.text(nodes[0], nodes[n-1])
	}
	return m.bind(listWildcard, text)
}

func (m *matcher) node(p, n ast.Node) bool {
	if name, ok := wildcard(p); ok {
		return m.bind(name, m.src.text(n, n))
	}
	return m.value(reflect.ValueOf(p), reflect.ValueOf(n))
}

func (m *matcher) bind(name, text string) bool {
	if before, ok := m.bound[name]; ok {
		return before == text
	}
	m.bound[name] = text
	return true
}

// value compares the fields of nodes of any type.
func (m *matcher) value(p, n reflect.Value) bool {
	if p.Type() != n.Type() {
		return false
	}
	switch p.Kind() {
	case reflect.Interface, reflect.Pointer:
		if p.IsNil() || n.IsNil() {
			return p.IsNil() && n.IsNil()
		}
		if pn, ok := reflect.TypeAssert[ast.Node](p); ok && p.Kind() == reflect.Interface {
			other, ok := reflect.TypeAssert[ast.Node](n)
			return ok && m.node(pn, other)
		}
		if _, ok := reflect.TypeAssert[*ast.CommentGroup](p); ok {
			return true
		}
		return m.value(p.Elem(), n.Elem())
	case reflect.Slice:
		return m.slice(p, n)
	case reflect.Struct:
		return m.fields(p, n)
	default:
		return p.Type() == reflect.TypeFor[token.Pos]() || p.Interface() == n.Interface()
	}
}

func (m *matcher) fields(p, n reflect.Value) bool {
	for i := range p.NumField() {
		if p.Type().Field(i).Name == "Obj" { // ignore the objects of identifiers, which differ between files
			continue
		}
		if !m.value(p.Field(i), n.Field(i)) {
			return false
		}
	}
	return true
}

func (m *matcher) slice(p, n reflect.Value) bool {
	if patterns, ok := reflect.TypeAssert[[]ast.Stmt](p); ok {
		nodes, ok := reflect.TypeAssert[[]ast.Stmt](n)
		return ok && m.list(asNodes(patterns), asNodes(nodes), false)
	}
	if p.Len() != n.Len() {
		return false
	}
	for i := range p.Len() {
		if !m.value(p.Index(i), n.Index(i)) {
			return false
		}
	}
	return true
}

// wildcard reports whether a node of a pattern is a wildcard, and returns the name of the wildcard.
func wildcard(p ast.Node) (string, bool) {
	if s, ok := p.(*ast.ExprStmt); ok {
		p = s.X
	}
	id, ok := p.(*ast.Ident)
	if !ok || len(id.Name) < 2 || !strings.HasPrefix(id.Name, "_") {
		return "", false
	}
	return id.Name, true
}

func isWildcard(p ast.Node, name string) bool {
	found, ok := wildcard(p)
	return ok && found == name
}
