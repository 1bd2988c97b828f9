package plan

// Text contains the parts of an asset's code that its [Work] does not contain.
type Text struct {
	// Version is the version that the asset's file declares. If Version is set, the fingerprint covers Version instead
	// of Tree, Files and the command of the asset.
	Version string `json:"version,omitempty"`
	// Tree describes what the query computes.
	Tree *Tree `json:"tree,omitempty"`
	// Files maps paths of project files to the hashes of the files. It contains the files that the query or the command
	// names, and the files that the asset lists in its field `code`.
	Files map[string]string `json:"files,omitempty"`
}

// Tree describes what a query computes, independent of the formatting and comments of the query. It consists of hashes
// of the syntax tree.
type Tree struct {
	// Hash covers the whole statement.
	Hash string `json:"hash"`
	// Columns are the items of the outermost select list. Columns is empty for a statement that does not have exactly
	// one such list, for example a UNION.
	Columns []TreeColumn `json:"columns,omitempty"`
	// Rest covers everything except the outermost select list.
	Rest string `json:"rest,omitempty"`
	// Extensible means that adding an item to the select list changes neither the other columns nor the rows.
	Extensible bool `json:"extensible,omitempty"`
	// Positional means that ORDER BY or GROUP BY refers to items by their positions.
	Positional bool `json:"positional,omitempty"`
}

// TreeColumn is an item of a select list.
type TreeColumn struct {
	// Name is the alias of the item or the column that it selects. It is empty if there is neither.
	Name string `json:"name,omitempty"`
	// Hash covers the expression without its alias.
	Hash string `json:"hash"`
}
