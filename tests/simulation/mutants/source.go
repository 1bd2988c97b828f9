package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// source is a parsed file with its text.
type source struct {
	path string
	data string
	fset *token.FileSet
	file *ast.File
}

// sources returns the files of a package that are built on this platform, without tests.
func sources(dir string) ([]source, error) {
	pkg, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var found []source
	for _, name := range pkg.GoFiles {
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, data, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		found = append(found, source{path, string(data), fset, file})
	}
	return found, nil
}

// function returns the declaration of a function, named "f" or "(*T).f" or "(T).f".
func function(files []source, name string) (source, *ast.FuncDecl, error) {
	for _, src := range files {
		for _, decl := range src.file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && src.symbol(fn) == name && fn.Body != nil {
				return src, fn, nil
			}
		}
	}
	return source{}, nil, fmt.Errorf("no function %s", name)
}

// symbol returns a function's name as written in the list of mutants, without type parameters.
func (s source) symbol(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	recv := s.text(fn.Recv.List[0].Type, fn.Recv.List[0].Type)
	recv, _, _ = strings.Cut(recv, "[")
	return "(" + recv + ")." + fn.Name.Name
}

func (s source) offsets(first, last ast.Node) (from, to int) {
	return s.fset.Position(first.Pos()).Offset, s.fset.Position(last.End()).Offset
}

func (s source) text(first, last ast.Node) string {
	from, to := s.offsets(first, last)
	return s.data[from:to]
}
