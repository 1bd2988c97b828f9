// Command zonepack writes the time zone data of a Go distribution into one archive. See `make zonedata`.
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const wantArgs = 3

func main() {
	if len(os.Args) != wantArgs {
		fmt.Fprintln(os.Stderr, "usage: zonepack $(go env GOROOT)/lib/time pkg/calendar/zones.tar.gz")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pack time zones:", err)
		os.Exit(1)
	}
}

// pack reads zoneinfo.zip and its version from a folder, and writes the archive.
func pack(from, to string) error {
	script, err := os.ReadFile(filepath.Join(from, "update.bash")) //nolint:gosec // a file of the Go distribution
	if err != nil {
		return err
	}
	version := regexp.MustCompile(`(?m)^DATA=([0-9]{4}[a-z]+)$`).FindSubmatch(script)
	if version == nil {
		return errors.New("update.bash does not name a version of the data")
	}
	zones, err := read(filepath.Join(from, "zoneinfo.zip"))
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := write(&out, string(version[1]), zones); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "zone data %s: %d zones, %d bytes\n", version[1], len(zones), out.Len())
	return os.WriteFile(to, out.Bytes(), 0o644) //nolint:gosec // a file of the repository
}

// read returns the data of each zone.
func read(file string) (map[string][]byte, error) {
	archive, err := zip.OpenReader(file)
	if err != nil {
		return nil, err
	}
	zones := map[string][]byte{}
	for _, entry := range archive.File {
		if strings.HasSuffix(entry.Name, "/") {
			continue
		}
		content, err := entry.Open()
		if err != nil {
			return nil, errors.Join(err, archive.Close())
		}
		zones[entry.Name], err = io.ReadAll(content)
		if err := errors.Join(err, content.Close()); err != nil {
			return nil, errors.Join(err, archive.Close())
		}
	}
	return zones, archive.Close()
}

// write writes the archive: the file VERSION, then the zones. A zone with the same data as an earlier zone is stored as
// a link to it.
func write(out io.Writer, version string, zones map[string][]byte) error {
	packed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(packed)
	add := func(header *tar.Header, content []byte) error {
		header.Mode, header.Format, header.Size = 0o644, tar.FormatUSTAR, int64(len(content))
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	if err := add(&tar.Header{Typeflag: tar.TypeReg, Name: "VERSION"}, []byte(version+"\n")); err != nil {
		return err
	}
	names := make([]string, 0, len(zones))
	for name := range zones {
		names = append(names, name)
	}
	slices.Sort(names)
	written := map[string]string{}
	for _, name := range names {
		content := zones[name]
		if first, ok := written[string(content)]; ok {
			if err := add(&tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: first}, nil); err != nil {
				return err
			}
			continue
		}
		written[string(content)] = name
		if err := add(&tar.Header{Typeflag: tar.TypeReg, Name: name}, content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), packed.Close())
}
