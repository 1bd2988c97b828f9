package plan

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Extensions of DuckDB that a query may use.
const (
	ExtensionHTTPFS = "httpfs" // files behind URLs: S3, GCS, HTTP
	ExtensionSQLite = "sqlite" // files of SQLite databases
	ExtensionExcel  = "excel"  // .xlsx files in folders that queries may read
)

// Extensions lists the extensions that a query may use. Later lists the extensions that are planned but not supported
// yet.
var (
	Extensions = []string{ExtensionExcel, ExtensionHTTPFS, ExtensionSQLite}
	Later      = []string{"aws", "azure", "delta", "iceberg", "mysql", "postgres"}
)

// Limits of external data.
const (
	MaxSourcePaths = 100
	MaxPrefixes    = 1_000
	MaxAttached    = 32
)

// ExtensionsDir is the default folder with the files of extensions, relative to the project.
const ExtensionsDir = ".servo-extensions"

// External is an extension that a query uses, with everything outside of Servo that the extension lets the query
// read. It contains references to secrets, never their values.
type External struct {
	Extension string `json:"extension"`
	// Directory contains the files of extensions. A relative path is relative to the project.
	Directory string `json:"directory"`
	// Prefixes are the prefixes of the URLs that the query may read.
	Prefixes []string         `json:"prefixes,omitempty"`
	Secrets  []ExternalSecret `json:"secrets,omitempty"`
	// Attach maps the name of each database in SQL to its file.
	Attach map[string]string `json:"attach,omitempty"`
}

// ExternalSecret is a secret of DuckDB.
type ExternalSecret struct {
	Name string `json:"name"`
	Type string `json:"type"` // one of the types in [SecretTypes]
	// Scope is the prefix of the URLs for which DuckDB uses the secret; "": all URLs of the secret's type.
	Scope string `json:"scope,omitempty"`
	// Options are settings that are not secret, such as region. References are the secret settings; each value is a
	// reference to a secret, which [ParseSecret] reads.
	Options    map[string]string `json:"options,omitempty"`
	References map[string]string `json:"references,omitempty"`
}

// SecretTypes maps each type of httpfs secret to the settings in [ExternalSecret.References] that the type requires.
var SecretTypes = map[string][]string{
	"s3":   {"key_id", "secret"},
	"gcs":  {"key_id", "secret"},
	"http": {"bearer_token"},
}

// Uses returns the extension with the given name, or nil if the query does not use it.
func (w *Work) Uses(extension string) *External {
	for i := range w.External {
		if w.External[i].Extension == extension {
			return &w.External[i]
		}
	}
	return nil
}

// httpfsSchemes are the schemes of URLs that httpfs reads.
var httpfsSchemes = []string{"gcs", "gs", "http", "https", "s3"}

// ExtensionOf returns the extension that reads a URL, or "" if there is none.
func ExtensionOf(name string) string {
	scheme, _, _ := strings.Cut(name, "://")
	if slices.Contains(httpfsSchemes, strings.ToLower(scheme)) {
		return ExtensionHTTPFS
	}
	return ""
}

// PrefixPattern matches a prefix of URLs that httpfs may read: a scheme, a host or a bucket, and folders, with a
// slash at the end. It is a pattern of both RE2 and ECMAScript. [ValidPrefix] also rejects segments such as "..",
// which a server might resolve.
const PrefixPattern = `^(gcs|gs|http|https|s3)://[A-Za-z0-9._-]+(:[0-9]{1,5})?/([A-Za-z0-9._~=+,!$&()-]+/)*$`

// ValidPrefix reports whether a text is a valid prefix of URLs for httpfs. It must end with a slash: without one, the
// prefix s3://landing would cover s3://landing-of-others.
func ValidPrefix(prefix string) bool { return prefixForm.MatchString(prefix) && !Climbs(prefix) }

// Climbs reports whether a URL has a path segment "." or "..", plain or encoded. A server may resolve such a URL
// to another folder.
func Climbs(name string) bool {
	_, rest, _ := strings.Cut(name, "://")
	for range 3 { // a server or a proxy may decode more than once
		rest, _, _ = strings.Cut(rest, "?")
		for part := range strings.FieldsFuncSeq(rest, func(r rune) bool { return r == '/' || r == '\\' }) {
			if part == "." || part == ".." {
				return true
			}
		}
		decoded, err := url.PathUnescape(rest)
		if err != nil || decoded == rest {
			return false
		}
		rest = decoded
	}
	return true // too many nested encodings to decide
}

// Covers reports whether a URL begins with one of the prefixes of the extension.
func (e *External) Covers(name string) bool {
	return slices.ContainsFunc(e.Prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// SourcePathPattern matches an item of sources.paths: an absolute path, or one that leaves the project with "..". It is
// a pattern of both RE2 and ECMAScript.
const SourcePathPattern = `^(/|(\.\./)+)[^./*?\[\]\\][^/*?\[\]\\]*(/[^./*?\[\]\\][^/*?\[\]\\]*)*$`

// ValidSourcePath reports whether a name is a folder outside of the project that queries may read. No part of it begins
// with a dot, except leading "..".
func ValidSourcePath(name string) bool {
	return sourcePathForm.MatchString(name) && path.Clean(name) == name
}

// AttachPattern matches the name of an attached database. DatabasePattern matches its file.
const (
	AttachPattern   = `^[a-z_][a-z0-9_]{0,62}$`
	DatabasePattern = `^(/|(\.\./)+)?[^./*?\[\]\\][^/*?\[\]\\]*(/[^./*?\[\]\\][^/*?\[\]\\]*)*$`
)

// validate checks the extension. Its error quotes nothing that may be a secret.
func (e *External) validate() error {
	if !slices.Contains(Extensions, e.Extension) {
		return fmt.Errorf("unknown extension %.200q", e.Extension)
	}
	if e.Directory == "" || len(e.Prefixes) > MaxPrefixes || len(e.Attach) > MaxAttached || len(e.Secrets) > MaxSecrets {
		return fmt.Errorf("the extension %s has no folder, or has too many prefixes, databases or secrets", e.Extension)
	}
	for _, prefix := range e.Prefixes {
		if !ValidPrefix(prefix) {
			return fmt.Errorf("the extension %s has the invalid prefix %.200q", e.Extension, prefix)
		}
	}
	for name := range e.Attach {
		if !attachForm.MatchString(name) {
			return fmt.Errorf("invalid database name %.200q", name)
		}
	}
	for _, s := range e.Secrets {
		if err := s.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (s *ExternalSecret) validate() error {
	if !attachForm.MatchString(s.Name) || SecretTypes[s.Type] == nil || s.Scope != "" && !ValidPrefix(s.Scope) {
		return fmt.Errorf("the secret %.200q of an extension has an invalid name, type or scope", s.Name)
	}
	for name, reference := range s.References {
		if _, err := ParseSecret(reference); err != nil || !slices.Contains(secretSettings, name) {
			return fmt.Errorf("the setting %.200q of the secret %s is not a reference to a secret", name, s.Name)
		}
	}
	for name := range s.Options {
		if !slices.Contains(plainSettings, name) {
			return fmt.Errorf("the secret %s has the unknown setting %.200q", s.Name, name)
		}
	}
	return nil
}

// secretSettings are the settings that are secret, and plainSettings the others.
var (
	secretSettings = []string{"bearer_token", "key_id", "secret", "session_token"}
	plainSettings  = []string{"endpoint", "region", "url_style", "use_ssl"}
)

var (
	attachForm     = regexp.MustCompile(AttachPattern)
	prefixForm     = regexp.MustCompile(PrefixPattern)
	sourcePathForm = regexp.MustCompile(SourcePathPattern)
)
