package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// The parts of CycloneDX 1.6 that a bill of materials uses.
type (
	bill struct {
		Format       string       `json:"bomFormat"`
		Spec         string       `json:"specVersion"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []part       `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Component part `json:"component"`
	}
	part struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Licences   []licence  `json:"licenses,omitempty"`
		URL        string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	licence struct {
		Expression string `json:"expression"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref string   `json:"ref"`
		On  []string `json:"dependsOn"`
	}
)

// encodeBill returns the bill of materials of a program.
func encodeBill(program, version, sha256 string, components []component) ([]byte, error) {
	main := part{
		Type: "application", Ref: program, Name: program, Version: version,
		Hashes: []hash{{"SHA-256", sha256}}, Licences: []licence{{"Apache-2.0"}},
	}
	b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{main}}
	on := dependency{Ref: main.Ref}
	for _, c := range components {
		p := part{
			Type: "library", Ref: packageURL(c.module), Name: c.path, Version: c.version,
			Licences: []licence{{strings.Join(c.licences, " AND ")}}, URL: packageURL(c.module),
		}
		if c.sum != "" { // go.sum has a hash of a list of hashes, for which CycloneDX has no name
			p.Properties = []property{{"go:sum", c.sum}}
		}
		b.Components = append(b.Components, p)
		on.On = append(on.On, p.Ref)
	}
	b.Dependencies = []dependency{on}
	data, err := json.MarshalIndent(b, "", "  ")
	return append(data, '\n'), err
}

func packageURL(m module) string {
	return "pkg:golang/" + m.path + "@" + strings.ReplaceAll(strings.TrimPrefix(m.version, "go"), "+", "%2B")
}

// notices returns the licence texts of the components. Each different text occurs once, after the names of the files
// that contain it.
func notices(components []component) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "This program contains the following modules. Their licences and notices follow.\n\n")
	files := map[string][]string{}
	var order []string
	for _, c := range components {
		fmt.Fprintf(&out, "%s %s: %s\n", c.path, c.version, strings.Join(c.licences, " AND "))
		for _, t := range c.texts {
			if files[t.content] == nil {
				order = append(order, t.content)
			}
			files[t.content] = append(files[t.content], c.path+"/"+t.file)
		}
	}
	for _, content := range order {
		slices.Sort(files[content])
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(files[content], "\n"), content) //nolint:mnd // columns
	}
	return out.Bytes()
}
