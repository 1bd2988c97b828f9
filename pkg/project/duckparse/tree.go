package duckparse

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// treeHashBytes is the length of a tree's hash in bytes. The hash is the beginning of a SHA-256.
const treeHashBytes = 16

// treeOf describes the computation of a statement. The description does not depend on positions in the text.
func treeOf(statement map[string]any) *plan.Tree {
	node := object(statement["node"])
	t := &plan.Tree{Hash: hashOf(statement, "")}
	if word(node["type"]) != "SELECT_NODE" {
		return t
	}
	list := array(node["select_list"])
	rest := maps.Clone(node)
	delete(rest, "select_list")
	t.Rest = hashOf(map[string]any{"statement": without(statement, "node"), "node": rest}, "")
	references, rows := false, true
	for _, item := range list {
		n := object(item)
		name := word(n["alias"])
		if names := columnNames(n); name == "" && word(n["type"]) == "COLUMN_REF" && len(names) > 0 {
			name = names[len(names)-1]
		}
		t.Columns = append(t.Columns, plan.TreeColumn{Name: name, Hash: hashOf(item, "alias")})
		forEachNode(item, func(n map[string]any) {
			switch {
			case word(n["type"]) == "STAR", slices.Contains(multiplying, word(n["function_name"])):
				rows = false
			case word(n["type"]) == "COLUMN_REF":
				references = true
			}
		})
	}
	groups := array(node["group_expressions"])
	forEachNode(node["modifiers"], func(n map[string]any) {
		switch word(n["type"]) {
		case "DISTINCT_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "STAR":
			rows = false // an alias of a new column may change which rows remain
		case "ORDER_MODIFIER":
			for _, order := range array(n["orders"]) {
				t.Positional = t.Positional || word(object(object(order)["expression"])["type"]) == "VALUE_CONSTANT"
			}
		}
	})
	for _, group := range groups {
		t.Positional = t.Positional || word(object(group)["type"]) == "VALUE_CONSTANT"
	}
	rows = rows && node["qualify"] == nil // QUALIFY may use the alias of a new column
	forEachNode(rest, func(n map[string]any) {
		t.Positional = t.Positional || word(n["type"]) == "POSITIONAL_REFERENCE"
	})
	// If a query has neither groups nor references to columns, a new aggregate would reduce its result to one row.
	t.Extensible = rows && (references || len(groups) > 0) && word(node["aggregate_handling"]) != "FORCE_AGGREGATES"
	return t
}

// multiplying are the functions that return several rows for each input row.
var multiplying = []string{"unnest", "unlist", "generate_subscripts"}

// forEachNode calls f for every node of a tree.
func forEachNode(v any, f func(map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			forEachNode(item, f)
		}
	case map[string]any:
		f(v)
		for _, child := range v {
			forEachNode(child, f)
		}
	}
}

func without(n map[string]any, name string) map[string]any {
	n = maps.Clone(n)
	delete(n, name)
	return n
}

// hashOf returns a hash of a tree without positions. If except is not "", it also omits the root's field with this
// name.
func hashOf(v any, except string) string {
	var b bytes.Buffer
	if n, ok := v.(map[string]any); ok && except != "" {
		v = without(n, except)
	}
	writeTree(&b, v)
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:treeHashBytes])
}

// writeTree writes a tree in a canonical form.
func writeTree(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case map[string]any:
		b.WriteByte('{')
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if key == "query_location" {
				continue
			}
			b.WriteString(key)
			b.WriteByte(':')
			writeTree(b, v[key])
			b.WriteByte(',')
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for _, item := range v {
			writeTree(b, item)
			b.WriteByte(',')
		}
		b.WriteByte(']')
	case string:
		b.Write(strconv.AppendQuote(b.AvailableBuffer(), v))
	case json.Number:
		b.WriteString(v.String())
	case bool:
		b.WriteString(strconv.FormatBool(v))
	default:
		b.WriteString("null")
	}
}

// file adds the files that a function reads, if its first argument names them as literals.
func (w *walker) file(n map[string]any) {
	name := word(n["function_name"])
	if !strings.HasPrefix(name, "read_") && !strings.HasPrefix(name, "parquet_") && !slices.Contains(readers, name) {
		return
	}
	args := array(n["children"])
	if len(args) == 0 {
		return
	}
	first := uncast(args[0])
	if word(object(first)["function_name"]) != "list_value" {
		args = []any{first}
	} else {
		args = array(object(first)["children"])
	}
	for _, arg := range args {
		if s := text(arg); s != "" {
			w.files = append(w.files, s)
		} else if names := columnNames(object(uncast(arg))); len(names) == 1 {
			w.files = append(w.files, names[0]) // DuckDB interprets an identifier as the name of a file
		}
	}
}

// readers are the functions besides read_… and parquet_… whose first argument names files or tables to read.
var readers = []string{"sniff_csv", "glob", "query_table"}
