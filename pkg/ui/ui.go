// Package ui serves the web page. This package is not a stable API.
//
// The folder dist contains the output of `make ui`. The sources of the page are in the folder ui. The files are
// compressed with gzip, and are served as they are stored. The page contains no data: it reads everything from the
// API.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/servo-orchestration/servo/internal/httpx"
)

//go:embed dist
var dist embed.FS

// policy is the content security policy of the page: the page may use only its own scripts and styles, and may send
// requests only to its own server. Trusted Types restrict the browser functions that load a script from an address,
// such as new Worker: scripts can pass them only the address of the web worker that lays out graphs.
const policy = "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types servo-worker"

// assets is the folder of files whose names contain a hash of their content.
const assets = "/assets/"

// file is a file of the page.
type file struct {
	packed []byte // gzip
	etag   string
	kind   string
}

// handler serves the files by path. The path "" is the page itself.
type handler map[string]file

// Handler returns a handler that serves the files of the page below /assets/ and the page itself at
// every other path.
func Handler() http.Handler {
	h, err := load(dist)
	if err != nil {
		panic(err) // cannot happen: a test loads the folder that is part of the program
	}
	return h
}

func load(files fs.FS) (handler, error) {
	h := handler{}
	err := fs.WalkDir(files, "dist", func(name string, entry fs.DirEntry, err error) error {
		served, packed := strings.CutSuffix(name, ".gz")
		if err != nil || entry.IsDir() || !packed {
			return err
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err //nolint:wrapcheck // the error already names the file
		}
		sum := sha256.Sum256(data)
		served = strings.TrimPrefix(served, "dist")
		if served == "/index.html" {
			served = ""
		}
		h[served] = file{packed: data, etag: `"` + hex.EncodeToString(sum[:16]) + `"`, kind: kindOf(name)}
		return nil
	})
	return h, err //nolint:wrapcheck // as above
}

// kindOf returns the media type of a stored file. It does not use the machine's table of types, which may contain
// anything.
func kindOf(name string) string {
	switch path.Ext(strings.TrimSuffix(name, ".gz")) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.FormatMediaType("text/plain", map[string]string{"charset": "utf-8"})
}

// ServeHTTP implements [http.Handler].
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	name, caching := "", "no-store"
	if strings.HasPrefix(r.URL.Path, assets) {
		name, caching = r.URL.Path, "public, max-age=31536000, immutable"
	}
	f, ok := h[name]
	if !ok {
		httpx.Refuse(w, http.StatusNotFound, "the page has no file "+r.URL.Path+": reload the page, because another version of servo serves it now")
		return
	}
	header.Set("Content-Type", f.kind)
	header.Set("Content-Security-Policy", policy)
	header.Set("Cache-Control", caching)
	header.Set("ETag", f.etag)
	header.Add("Vary", "Accept-Encoding")
	if name != "" && r.Header.Get("If-None-Match") == f.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		_, _ = w.Write(f.packed) // an error means that the client has disconnected
		return
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(f.packed))
	if err != nil {
		httpx.Refuse(w, http.StatusInternalServerError, "read "+r.URL.Path+": "+err.Error())
		return
	}
	_, _ = io.Copy(w, unpacked) //nolint:gosec // the size is known: the file is part of the program
}
