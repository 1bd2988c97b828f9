package plan

// Text is what an asset's code consists of, besides its [Work].
type Text struct {
	// Version is the version that the asset's file declares. It replaces tree, command and files in
	// the fingerprint.
	Version string `json:"version,omitempty"`
	// Tree is what the query computes.
	Tree *Tree `json:"tree,omitempty"`
	// Files are the hashes of the project's files that the query or the command names, or that the
	// asset lists under code, by path.
	Files map[string]string `json:"files,omitempty"`
}

// Tree is what a query computes, independent of its formatting and comments.
type Tree struct {
	// Hash covers the whole statement.
	Hash string `json:"hash"`
	// Columns are the items of the outermost select list. A statement without one list, such as a
	// UNION, has none.
	Columns []TreeColumn `json:"columns,omitempty"`
	// Rest covers everything except the outermost select list.
	Rest string `json:"rest,omitempty"`
	// Extensible means that a further item of the list changes neither the others nor the rows.
	Extensible bool `json:"extensible,omitempty"`
	// Positional means that ORDER BY or GROUP BY refers to items by their positions.
	Positional bool `json:"positional,omitempty"`
}

// TreeColumn is an item of a select list.
type TreeColumn struct {
	// Name is empty if the query names neither a column nor an alias.
	Name string `json:"name,omitempty"`
	// Hash covers the expression without its alias.
	Hash string `json:"hash"`
}
