// Command sbom writes two files for each given Go program: a software bill of materials in the format of CycloneDX, and
// the licences and notices of the modules that are linked into the program:
//
//	go run ./internal/sbom -o bin/notices bin/servo bin/servo-compactor
//
// The command reads the modules from the program itself, where the linker has recorded them, and their licences from
// the module cache. It fails if it finds no licence for a module, or a licence that it does not know. The same
// program always results in the same files.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
)

// Names of the files that are written for each program.
const (
	billFile    = "sbom.cdx.json"
	noticesFile = "THIRD_PARTY_NOTICES.txt"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	out := flags.String("o", "", "output folder; each program gets its own folder in it (required)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() == 0 {
		return errors.New("usage: sbom -o FOLDER PROGRAM [PROGRAM]")
	}
	found := newLicences()
	for _, program := range flags.Args() {
		if err := describe(program, filepath.Join(*out, filepath.Base(program)), found); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
	}
	return nil
}

// describe writes the files of a program into a folder.
func describe(program, folder string, found *licences) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program) //nolint:gosec // the caller chose this path
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	components, err := found.components(linked(info))
	if err != nil {
		return err
	}
	bill, err := encodeBill(filepath.Base(program), info.Main.Version, hex.EncodeToString(sum[:]), components)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // public
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(folder, billFile), bill, 0o644),                   //nolint:gosec // public
		os.WriteFile(filepath.Join(folder, noticesFile), notices(components), 0o644), //nolint:gosec // public
	)
}

// linked returns the modules in a program, without the main module. The standard library is included, as the module
// std.
func linked(info *debug.BuildInfo) []module {
	modules := []module{{path: standardLibrary, version: info.GoVersion}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, module{path: m.Path, version: m.Version, sum: m.Sum})
	}
	return modules
}
