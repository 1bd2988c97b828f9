package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// The package mutation, which contains the name of the active mutant, exists only in the overlay.
const (
	mutationFile = "internal/mutation/mutation.go"
	mutationText = `// Package mutation names the mutant that this process runs.
package mutation

import "os"

// Active is the name of the mutant, or "".
var Active = os.Getenv("` + activeVariable + `")
`
	activeVariable = "SERVO_MUTANT"
)

// builder compiles test binaries that contain all mutants of a list. At run time, the environment variable SERVO_MUTANT
// names the active mutant.
type builder struct {
	dir      string // output folder
	overlay  string // path of the overlay file
	binaries map[string]string
}

// newBuilder writes all mutants into an overlay for the Go compiler. It does not change the checkout.
func newBuilder(dir, module string, mutants []located) (*builder, error) {
	edited := editedFiles(module, mutants)
	edited[mutationFile] = mutationText
	replace := map[string]string{}
	for path, text := range edited {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, strings.ReplaceAll(path, string(filepath.Separator), "_"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		replace[absolute] = file
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	b := &builder{dir, filepath.Join(dir, "overlay.json"), map[string]string{}}
	return b, os.WriteFile(b.overlay, data, 0o600)
}

// editedFiles returns the text of each file that mutants edit. The text contains a branch for each of these mutants.
func editedFiles(module string, mutants []located) map[string]string {
	type insertion struct {
		at   int
		text string
	}
	files := map[string][]insertion{}
	texts := map[string]string{}
	for _, m := range mutants {
		path := m.src.path
		if _, ok := texts[path]; !ok {
			texts[path] = m.src.data
			_, after := m.src.offsets(m.src.file.Name, m.src.file.Name)
			files[path] = append(files[path], insertion{after, fmt.Sprintf("; import mutation %q", module+"/internal/mutation")})
		}
		open, _ := m.src.offsets(m.fn.Body, m.fn.Body)
		files[path] = append(files[path], insertion{open + 1, " " + m.branch()})
	}
	for path, insertions := range files {
		slices.SortStableFunc(insertions, func(a, b insertion) int { return b.at - a.at })
		for _, i := range insertions {
			texts[path] = texts[path][:i.at] + i.text + texts[path][i.at:]
		}
	}
	return texts
}

// binary returns the path of the test binary of a package, compiled on first use.
func (b *builder) binary(ctx context.Context, pkg string) (string, error) {
	if path, ok := b.binaries[pkg]; ok {
		return path, nil
	}
	path := filepath.Join(b.dir, strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "_")+".test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", b.overlay, "-o", path, pkg)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the mutants do not compile: %w\n%s", err, out)
	}
	b.binaries[pkg] = path
	return path, nil
}
