package release

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Fingerprints are hashes of the parts of an asset's definition. Each has 16 hexadecimal digits.
type Fingerprints struct {
	// Code covers everything that affects the bytes of an output.
	Code string `json:"code"`
	// Gate covers the checks.
	Gate string `json:"gate,omitempty"`
	// Policy covers all other fields, such as retries, pools and descriptions.
	Policy string `json:"policy"`
	// Space covers the names and kinds of the partition dimensions. It is empty if the asset is not partitioned.
	Space string `json:"space,omitempty"`
}

// fingerprintBytes is how many bytes of a SHA-256 hash a fingerprint contains.
const fingerprintBytes = 8

// fingerprint returns a hash of a value's canonical JSON.
func fingerprint(v any) string {
	data, err := canonical(v)
	if err != nil {
		panic("release: fingerprint: " + err.Error()) // the values have only JSON types
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:fingerprintBytes])
}

// dimension contains the properties of a partition dimension that a fingerprint covers. It covers neither ranges nor
// the values of static dimensions.
type dimension struct {
	Name     string     `json:"name"`
	Kind     space.Kind `json:"kind"`
	Timezone string     `json:"timezone,omitempty"`
	Minutes  int        `json:"minutes,omitempty"`
	Starts   string     `json:"starts,omitempty"`
	Set      string     `json:"set,omitempty"`
}

// spaceOf returns the dimensions of an asset as fingerprints cover them. It returns nil for an asset without
// partitions.
func spaceOf(a *plan.Asset) []dimension {
	if a.Partitions == nil {
		return nil
	}
	var all []dimension
	for _, d := range a.Partitions.Dimensions {
		id := dimension{Name: d.Name, Kind: d.Kind, Timezone: d.Timezone, Minutes: d.Minutes, Starts: d.Starts, Set: d.Set}
		if id.Timezone == "UTC" {
			id.Timezone = ""
		}
		if id.Starts == space.Weekdays[0] {
			id.Starts = ""
		}
		all = append(all, id)
	}
	return all
}

// dependency contains the properties of a dependency that the code fingerprint of the reader covers.
type dependency struct {
	Space []dimension `json:"space"`
	// Map contains the operations of the mapping, which may be declared or inferred.
	Map []space.DimensionMap `json:"map,omitempty"`
	// Ranges maps the names of upstream dimensions to their declared ranges. It contains a dimension only if a
	// partition of the reader may read all keys of this dimension. If the range of such a dimension becomes smaller,
	// the query reads fewer rows.
	Ranges map[string]declaredRange `json:"ranges,omitempty"`
	// NoColumns means that the partition keys of the upstream asset are not added as columns to the rows that a query
	// reads.
	NoColumns bool `json:"no_columns,omitempty"`
}

// declaredRange is the declared range of a time dimension, or the declared values of a static dimension.
type declaredRange struct {
	Start  string   `json:"start,omitempty"`
	End    string   `json:"end,omitempty"`
	Values []string `json:"values,omitempty"`
}

func dependencyOf(a, up *plan.Asset) *dependency {
	d := &dependency{Space: spaceOf(up), NoColumns: a.Work.SQL != "" && up.Partitions != nil && up.NoPartitionColumns}
	m, err := plan.Mapping(up, a)
	if err != nil {
		return d
	}
	d.Map = m.Operations()
	if up.Partitions == nil {
		return d
	}
	d.Ranges = map[string]declaredRange{}
	for _, dim := range up.Partitions.Dimensions {
		switch op, _ := m.Of(dim.Name); op.Op {
		case space.All, space.Latest, space.Coarsen:
			d.Ranges[dim.Name] = declaredRange{dim.Start, dim.End, slices.Sorted(slices.Values(dim.Values))}
		case space.Identity, space.Window, space.Refine, space.Values:
		}
	}
	return d
}

// surroundings contains the inputs of a code fingerprint that are not in the struct text.
type surroundings struct {
	Kind  string                 `json:"kind"`
	Deps  map[string]*dependency `json:"deps"` // the dependencies by asset key
	Space []dimension            `json:"space"`
	// Dimensions contains the SQL types of the variables that hold the partition's values, by the name of the variable.
	Dimensions  map[string]string   `json:"dimensions"`
	InputFormat string              `json:"input_format"`
	Output      string              `json:"output"`
	Env         map[string]string   `json:"env"`
	Secrets     []string            `json:"secrets"` // the names of the variables, without their references
	Vars        map[string]plan.Var `json:"vars"`
	// Text describes how text files become a table. Types are the declared types of the columns.
	Text  *plan.TextOutput  `json:"text,omitempty"`
	Types map[string]string `json:"types,omitempty"`
	// Integers contains the declared types of the columns in which 128-bit integers may be stored, by the name of the
	// column.
	Integers map[string]string `json:"integers,omitempty"`
	// Batch means that the query receives lists of partitions.
	Batch bool `json:"batch,omitempty"`
	// Uses are the extensions that the query uses. The data that the extensions may read is covered by the policy
	// fingerprint.
	Uses []string `json:"uses,omitempty"`
	// Attach contains the files of the attached databases that the query may read, by the name of the database.
	Attach map[string]string `json:"attach,omitempty"`
}

// text contains the inputs of a code fingerprint that a declared `version` replaces: the query or command, and the
// files.
type text struct {
	Version string            `json:"version,omitempty"`
	Tree    string            `json:"tree,omitempty"`
	Command []string          `json:"command,omitempty"`
	Files   map[string]string `json:"files,omitempty"`
}

// Kind returns the kind of an asset.
func Kind(a *plan.Asset) string {
	if a.Work.SQL != "" {
		return "sql"
	}
	return "command"
}

func surroundingsOf(a *plan.Asset, upstream func(ids.AssetKey) *plan.Asset) surroundings {
	s := surroundings{
		Kind: Kind(a), Deps: map[string]*dependency{}, Space: spaceOf(a), Dimensions: a.Work.Dimensions, InputFormat: a.Work.InputFormat,
		Output: a.Work.Output, Env: a.Work.Env, Secrets: slices.Sorted(maps.Keys(a.Work.Secrets)), Vars: a.Work.Vars,
	}
	if s.InputFormat == plan.FormatParquet {
		s.InputFormat = ""
	}
	s.Batch = a.Work.Batch
	s.Integers = quality.DeclaredIntegers(a.Work.Checks)
	if s.Text = a.Work.Text; s.Text != nil && s.Text.Format != plan.TextNone {
		s.Types = quality.DeclaredTypes(a.Work.Checks)
	}
	for i := range a.Work.External {
		s.Uses = append(s.Uses, a.Work.External[i].Extension)
	}
	s.Attach = attachedTo(a)
	for _, key := range a.Deps {
		if slices.Contains(a.CheckDeps, key) {
			continue
		}
		var of *dependency
		if up := upstream(key); up != nil {
			of = dependencyOf(a, up)
		}
		s.Deps[key.String()] = of
	}
	return s
}

// attachedTo returns the attached databases whose names occur in the query of an asset, with their files. If a name
// occurs in the query with another meaning, the asset becomes stale unnecessarily when another file is attached under
// the name.
func attachedTo(a *plan.Asset) map[string]string {
	files, query := map[string]string{}, strings.ToLower(a.Work.SQL)
	for i := range a.Work.External {
		for name, file := range a.Work.External[i].Attach {
			if strings.Contains(query, name) {
				files[name] = file
			}
		}
	}
	return files
}

func textOf(a *plan.Asset) text {
	if a.Text.Version != "" {
		return text{Version: a.Text.Version}
	}
	t := text{Command: a.Work.Command, Files: a.Text.Files}
	if a.Text.Tree != nil {
		t.Tree = a.Text.Tree.Hash
	}
	return t
}

// CodeOf returns the code fingerprint of an asset. It finds the dependencies of the asset by their keys, with the
// function "upstream".
func CodeOf(a *plan.Asset, upstream func(ids.AssetKey) *plan.Asset) string {
	return fingerprint([]any{surroundingsOf(a, upstream), textOf(a)})
}

// SetCodes sets the code fingerprints of assets, which must be sorted by key. A broken asset gets none.
func SetCodes(assets []plan.Asset) {
	for i := range assets {
		assets[i].Code = ""
		if assets[i].Broken == "" {
			assets[i].Code = CodeOf(&assets[i], func(key ids.AssetKey) *plan.Asset { return find(assets, key) })
		}
	}
}

// policyOf returns the policy fingerprint. It covers all fields of an asset that affect neither the bytes of its
// outputs nor whether the outputs are accepted.
func policyOf(a *plan.Asset) string {
	rest := *a
	rest.Key, rest.Deps, rest.Work, rest.Text, rest.Code, rest.Query = ids.AssetKey{}, nil, plan.Work{
		Secrets: a.Work.Secrets, ExitCodes: a.Work.ExitCodes, Quarantine: a.Work.Quarantine, Resources: a.Work.Resources, SchemaDrift: a.Work.SchemaDrift,
		External: a.Work.External,
	}, plan.Text{}, "", plan.Source{}
	rest.File, rest.CheckDeps, rest.Reads = "", nil, requirementsOf(a)
	data, err := json.Marshal(&rest)
	if err != nil {
		panic("release: policy: " + err.Error()) // the fields have only JSON types
	}
	return fingerprint(json.RawMessage(data))
}

// requirementsOf returns the dependencies that require complete inputs, without their mappings.
func requirementsOf(a *plan.Asset) []plan.Dep {
	var deps []plan.Dep
	for _, d := range a.Reads {
		if d.Requires != "" || d.RequireQuality {
			deps = append(deps, plan.Dep{Asset: d.Asset, Requires: d.Requires, RequireQuality: d.RequireQuality})
		}
	}
	return deps
}

func fingerprintsOf(a *plan.Asset) Fingerprints {
	f := Fingerprints{Code: a.Code, Policy: policyOf(a)}
	if len(a.Work.Checks) > 0 {
		f.Gate = fingerprint(a.Work.Checks)
	}
	if s := spaceOf(a); s != nil {
		f.Space = fingerprint(s)
	}
	return f
}
