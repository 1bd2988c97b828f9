package project

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// headerStart matches the start of a header in a SQL file. Blank lines and line comments may precede the header.
var (
	headerStart = regexp.MustCompile(`^((?:\s|--[^\n]*\n)*/\*[ \t]*servo)(?:\s|\*/)`)
	headerLate  = regexp.MustCompile(`/\*[ \t]*servo\s`)
	// firstComment matches the start of the comment at the beginning of a file, and the first word of this comment.
	firstComment = regexp.MustCompile(`^(?:\s|--[^\n]*\n)*(/\*[\s*!]*([A-Za-z_-]*)(?:[ \t]*:)?)`)
	// fieldFollows matches what follows the word servo in a comment that was probably meant as a header.
	fieldFollows = regexp.MustCompile(`^(?:[ \t]*\n|[ \t]+[a-z_]+:)`)
)

// findMisspelt reports whether the comment at the beginning of a file was probably meant as a header. It returns the
// start of the comment and the start of the fields in it. Examples are comments that begin with "/* servo:" or "/*
// sevro", if the names of fields follow. Such a comment is an error: as an ordinary comment, its fields would be
// ignored.
func findMisspelt(text []byte) (start, fields int, ok bool) {
	at := firstComment.FindSubmatchIndex(text)
	if at == nil {
		return 0, 0, false
	}
	start, word, after := at[2], string(text[at[4]:at[5]]), at[3]
	if strings.EqualFold(word, "servo") {
		return start, after, fieldFollows.Match(text[after:])
	}
	end := bytes.Index(text[after:], []byte("*/"))
	if end < 0 {
		return 0, 0, false
	}
	end += after
	known, unknown := countFields(text[after:end])
	if known > 0 && (unknown == 0 || plan.Suggest(word, []string{"servo"}) != "") {
		return start, after, true
	}
	known, unknown = countFields(text[at[4]:end]) // perhaps no word precedes the fields
	return start, at[4], known > 0 && unknown == 0
}

// countFields counts the names in a YAML mapping: names of an asset's fields are known, all others are unknown.
func countFields(text []byte) (known, unknown int) {
	var names map[string]yaml.Node
	if yaml.Unmarshal(text, &names) != nil {
		return 0, 0
	}
	fields := slices.Concat(assetFields, queryFields)
	for name := range names {
		if slices.ContainsFunc(fields, func(f field[declared]) bool { return f.name == name }) {
			known++
		} else {
			unknown++
		}
	}
	return known, unknown
}

// splitHeader returns the YAML in a file's header and the offset where the query starts. Spaces replace everything
// before the YAML, so that positions in the YAML are also positions in the file. If the header is not closed, body is
// negative.
func splitHeader(text []byte) (header []byte, body int) {
	found := headerStart.FindSubmatchIndex(text)
	if found == nil {
		return nil, 0
	}
	return headerFrom(text, found[3])
}

// headerFrom is [splitHeader] for a header whose YAML begins at start.
func headerFrom(text []byte, start int) (header []byte, body int) {
	length := bytes.Index(text[start:], []byte("*/"))
	if length < 0 {
		return nil, -1
	}
	end := start + length
	return append(blank(text[:start]), text[start:end]...), end + len("*/")
}

// misspeltHeader is [splitHeader] for a file whose header is misspelt. It reports the mistake, but returns the fields
// all the same, so that the asset still exists for commands and for its readers.
func (l *loader) misspeltHeader(name string, text []byte) (header []byte, body int) {
	at, fields, ok := findMisspelt(text)
	if !ok {
		return nil, 0
	}
	l.report(offsetPlace(name, text, at), "write /* servo", "the comment with the asset's fields starts with %q", text[at:fields])
	header, body = headerFrom(text, fields)
	return header, max(body, 0)
}

// checkSecondHeader reports a second comment with fields. The header before it ends at end.
func (l *loader) checkSecondHeader(name string, text []byte, end int) {
	for _, at := range headerLate.FindAllIndex(text[end:], -1) {
		start, word := end+at[0], end+at[1]-1 // a space or a line end follows the word servo
		if fieldFollows.Match(text[word:]) {
			l.report(offsetPlace(name, text, start), "write its fields in the first comment", "a file has only one comment with the asset's fields")
			return
		}
	}
}

// blank replaces every character with a space, except line ends.
func blank(text []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return ' '
	}, text)
}

// readSQLAsset reads a file with one query.
func (l *loader) readSQLAsset(name string, text []byte) {
	a := l.newAsset(name)
	f := yamlFile{l, name}
	header, start := splitHeader(text)
	if start < 0 {
		l.report(a.at, "end it with */", "the comment with the asset's fields is not closed")
		return
	}
	if at := headerLate.FindIndex(text); at != nil && header == nil {
		l.report(offsetPlace(name, text, at[0]), "move it to the start", "the comment with the asset's fields must come first in the file")
		return
	}
	if header == nil {
		header, start = l.misspeltHeader(name, text)
	}
	body := text[start:]
	if header != nil {
		l.checkSecondHeader(name, text, start)
	}
	n := f.parse(header)
	l.nameless = l.nameless || n == nil && len(bytes.TrimSpace(header)) > 0 // the header may set another key
	if n != nil && !isNull(n) {
		f.assetFields(n, a, queryFields.fields(f, a).merged(f.refusedInQuery()))
		if a.Key == (ids.AssetKey{}) && !hasField(n, "asset") {
			l.setKeyOfPath(a)
		}
	} else {
		l.setKeyOfPath(a)
	}
	query, offset := trimQuery(string(body))
	a.Work.SQL, a.query = query, offsetPlace(name, text, start+offset)
	a.Query = plan.Source{File: name, Line: a.query.line, Column: a.query.column}
	if query == "" {
		l.report(a.query, "write one SELECT", "the file has no query")
	}
	l.assets = append(l.assets, *a)
}

// These limits apply to the queries that one call of the parser parses. They exist because syntax trees are large.
const (
	batchQueries = 500
	batchBytes   = 2 << 20
)

// parseQueries finds the tables that the queries read.
func (l *loader) parseQueries(ctx context.Context) error {
	var batch []*declared
	size := 0
	for i := range l.assets {
		a := &l.assets[i]
		if a.Work.SQL == "" {
			continue
		}
		batch = append(batch, a)
		size += len(a.Work.SQL)
		if len(batch) < batchQueries && size < batchBytes {
			continue
		}
		if err := l.parseBatch(ctx, batch); err != nil {
			return err
		}
		batch, size = batch[:0], 0
	}
	return l.parseBatch(ctx, batch)
}

func (l *loader) parseBatch(ctx context.Context, batch []*declared) error {
	if len(batch) == 0 {
		return nil
	}
	queries := make([]string, len(batch))
	for i, a := range batch {
		queries[i] = a.Work.SQL
	}
	parsed, err := l.options.ParseSQL(ctx, queries)
	if err != nil {
		return fmt.Errorf("parse queries: %w", err)
	}
	for i, a := range batch {
		l.addRefs(a, parsed[i])
	}
	return nil
}

// addRefs adds the tables that an asset's query reads to the dependencies of the asset. An asset with an invalid
// query stays in the project, so that its readers do not cause further problems.
func (l *loader) addRefs(a *declared, p Parsed) {
	if p.Bad != nil {
		l.report(a.queryPlace(p.Bad.Offset), "", "%s", p.Bad.Message)
		return
	}
	a.lookbacks, a.output = p.Lookbacks, p.Output
	l.queryVars(a, p.Variables)
	a.Text.Tree, a.files = p.Tree, namesOfFiles(p)
	for _, ref := range p.Refs {
		if ref.Offset < 0 {
			ref.Offset = strings.Index(strings.ToLower(a.Work.SQL), strings.ToLower(ref.Table))
		}
		key, what := ref.classify()
		if what == refElse || l.attachedTable(a, ref) {
			continue
		}
		at := a.queryPlace(ref.Offset)
		at.word = ref.name()
		a.deps = append(a.deps, dep{key: key, at: at, query: true})
	}
}

// queryPlace returns the position in the file of a byte in the query.
func (a *declared) queryPlace(offset int) place {
	at := offsetPlace(a.File, []byte(a.Work.SQL), offset)
	if at.line == 1 {
		at.column += a.query.column - 1
	}
	at.line += a.query.line - 1
	return at
}

// Kinds of table references.
const (
	refAsset = iota
	refElse  // a file, or a table of DuckDB itself
)

var (
	fileSuffixes = []string{".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".xlsx", ".gz", ".zst"}
	ownTables    = []string{"sqlite_master", "sqlite_schema", "pragma_database_list"}
)

// classify reports whether a reference names an asset, or else a file or one of DuckDB's own tables. The key is empty
// if the name cannot be that of an asset. Names in SQL are case-insensitive.
func (r Ref) classify() (ids.AssetKey, int) {
	schema, table := strings.ToLower(r.Schema), strings.ToLower(r.Table)
	switch {
	case schema == "information_schema" || schema == "pg_catalog":
		return ids.AssetKey{}, refElse
	case r.Catalog != "":
		return ids.AssetKey{}, refAsset
	case schema == "":
		if strings.HasPrefix(table, "duckdb_") || slices.Contains(ownTables, table) || slices.Contains(fileSuffixes, path.Ext(table)) {
			return ids.AssetKey{}, refElse
		}
		return ids.AssetKey{}, refAsset
	}
	key, err := ids.ParseAssetKey(schema + "/" + table)
	if err != nil {
		return ids.AssetKey{}, refAsset
	}
	return key, refAsset
}

// name returns the reference as written.
func (r Ref) name() string {
	parts := []string{r.Catalog, r.Schema, r.Table}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ".")
}
