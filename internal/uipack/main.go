// Command uipack packs the build of the web page for embedding: it compresses each file with gzip and
// checks the sizes against the page's budget. Its output depends on its input alone.
//
//	go run ./internal/uipack ui/build pkg/ui/dist
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Budgets in bytes. The sizes of scripts and styles are those of the compressed files.
const (
	firstScripts = 190_000
	firstStyles  = 20_000
	allScripts   = 420_000
	unpacked     = 1_300_000
)

func main() {
	if len(os.Args) != 3 { //nolint:mnd // three arguments: the program and two folders
		fmt.Fprintln(os.Stderr, "usage: uipack BUILD DIST")
		os.Exit(2)
	}
	report, err := pack(os.Args[1], os.Args[2])
	_, _ = os.Stdout.WriteString(report) // ignore the error: the exit code tells the result
	if err != nil {
		fmt.Fprintln(os.Stderr, "uipack:", err)
		os.Exit(1)
	}
}

// pack replaces the contents of the folder dist with the packed files of a build. It reports their sizes.
func pack(build, dist string) (report string, err error) {
	if err := os.RemoveAll(dist); err != nil {
		return "", err
	}
	sizes, total := map[string]int{}, 0
	err = filepath.WalkDir(build, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(build, name)
		if err != nil {
			return err
		}
		out := filepath.Join(dist, relative)
		if filepath.Ext(name) != ".txt" { // licences stay uncompressed, so that people can read them
			total += len(data)
			if data, err = compress(data); err != nil {
				return err
			}
			sizes[filepath.ToSlash(relative)] = len(data)
			out += ".gz"
		}
		if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil { //nolint:gosec // part of the repository
			return err
		}
		return os.WriteFile(out, data, 0o644) //nolint:gosec // part of the repository
	})
	if err != nil {
		return "", err
	}
	page, err := os.ReadFile(filepath.Join(build, "index.html"))
	if err != nil {
		return "", err
	}
	return check(sizes, total, string(page))
}

func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

// loadedFirst finds the files that the page references. A browser downloads them on its first visit.
var loadedFirst = regexp.MustCompile(`(?:src|href)="/(assets/[^"]+)"`)

// check compares the sizes of files with the budgets. It returns a report of the sizes, and an error if a budget is
// exceeded.
func check(sizes map[string]int, total int, page string) (report string, err error) {
	sum := func(extension string, of func(string) bool) (bytes int) {
		for name, size := range sizes {
			if filepath.Ext(name) == extension && of(name) {
				bytes += size
			}
		}
		return bytes
	}
	var first []string
	for _, match := range loadedFirst.FindAllStringSubmatch(page, -1) {
		first = append(first, match[1])
	}
	isFirst := func(name string) bool { return slices.Contains(first, name) }
	each := func(string) bool { return true }
	var b strings.Builder
	var problems []error
	for _, budget := range []struct {
		name       string
		size, most int
	}{
		{"scripts of the first view, gzip", sum(".js", isFirst), firstScripts},
		{"styles of the first view, gzip", sum(".css", isFirst), firstStyles},
		{"all scripts, gzip", sum(".js", each), allScripts},
		{"all files, unpacked", total, unpacked},
	} {
		fmt.Fprintf(&b, "%-32s %8d of %8d bytes\n", budget.name, budget.size, budget.most)
		if budget.size > budget.most {
			problems = append(problems, fmt.Errorf("%s: %d bytes, and the budget is %d", budget.name, budget.size, budget.most))
		}
	}
	if len(first) == 0 {
		problems = append(problems, errors.New("index.html names no script"))
	}
	return b.String(), errors.Join(problems...)
}
