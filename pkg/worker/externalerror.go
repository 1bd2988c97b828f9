package worker

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// denied describes a URL or a function that a query names but must not use.
type denied struct {
	at      int // the offset in the query as written; -1: unknown
	message string
	action  string
}

func (d *denied) text() string { return d.message + ": " + d.action }

// failure returns an error with the position of the denied name in the asset's file.
func (d *denied) failure(query *resolvedQuery, source plan.Source) error {
	text := d.text()
	if d.at < 0 {
		return permanent(CodeSourceDenied, "%s", text)
	}
	line, column, snippet := locate(query.written, d.at, source)
	if source.File != "" {
		text = fmt.Sprintf("%s:%d:%d: %s", source.File, line, column, text)
	}
	return permanent(CodeSourceDenied, "%s\n\n%s", text, snippet)
}

// deniedURL returns the first URL in a query that the asset may not read, or nil. It sees only URLs that are
// literals. When the query runs, DuckDB checks all URLs.
func deniedURL(query *resolvedQuery, w *plan.Work) *denied {
	for _, l := range query.literals {
		if plan.ExtensionOf(l.path) == "" {
			continue
		}
		if found := urlDenied(l.path, w); found != nil {
			found.at = l.at
			return found
		}
	}
	return nil
}

// urlDenied returns the reason why an asset may not read a URL, or nil if it may.
func urlDenied(name string, w *plan.Work) *denied {
	extension := plan.ExtensionOf(name)
	e := w.Uses(extension)
	read := "read " + withoutPassword(name) + ": "
	switch {
	case extension == "":
		return &denied{-1, read + "no extension that Servo supports reads it", loadWithCommand}
	case e == nil:
		return &denied{-1, read + "the asset does not use " + extension, "add uses: [" + extension + "]"}
	case plan.Climbs(name):
		return &denied{-1, read + "its path has a segment . or .., which servers resolve", "write the path without it"}
	case !e.Covers(name):
		return &denied{-1, read + "no prefix of " + extension + " covers it", "add it to sources.extensions." + extension + ".prefixes in servo.yaml"}
	}
	return nil
}

// withoutPassword returns a URL without its user information.
func withoutPassword(name string) string {
	if parsed, err := url.Parse(name); err == nil && parsed.User != nil {
		parsed.User = url.User("***")
		return parsed.String()
	}
	return name
}

// deniedFunction returns the first function that a query with extensions names but must not name. It searches the
// whole text, even string literals, because a parse tree does not contain all names.
func deniedFunction(text string, added []string) *denied {
	if at := escapedText.FindStringIndex(text); at != nil {
		return &denied{at[0], "the query of an asset with `uses` may not contain names with escapes (U&)", "write the name itself"}
	}
	for _, name := range slices.Concat(deniedWords, added) {
		at := regexp.MustCompile(`(?i)(^|[^a-z0-9_])` + regexp.QuoteMeta(name) + `($|[^a-z0-9_])`).FindStringIndex(text)
		if at == nil {
			continue
		}
		action := "remove it"
		if slices.Contains(added, name) {
			action = "read the tables of an attached database as NAME.TABLE"
		}
		return &denied{at[0], "the query of an asset with `uses` may not name " + name, action}
	}
	return nil
}

// explainExternal replaces errors about data outside of Servo with errors that have their own codes.
func explainExternal(err error, w *plan.Work) error {
	e, ok := errors.AsType[*queryError](err)
	if !ok {
		return err
	}
	if remoteFile(e.message) && e.kind == kindPermission {
		_, rest, _ := strings.Cut(e.message, "Cannot access file \"")
		name, _, _ := strings.Cut(rest, "\"")
		if found := urlDenied(name, w); found != nil && plan.ExtensionOf(name) != "" {
			return permanent(CodeSourceDenied, "%s%s", e.place, found.text())
		}
	}
	if found := extensionName.FindStringSubmatch(e.message); found != nil {
		for extension, file := range fileNames {
			if file == found[1] && w.Uses(extension) == nil && extension != plan.ExtensionSQLite {
				message, _, _ := strings.Cut(e.message, "\n")
				return permanent(CodeSourceDenied, "%s%s: the asset does not use %s: add uses: [%s]", e.place, message, extension, extension)
			}
		}
	}
	if len(w.External) > 0 && isNetworkError(e) {
		return networkFailure(e)
	}
	return err
}

// httpStatus matches the status in a message of httpfs. urlInText matches the first URL in it.
var (
	httpStatus = regexp.MustCompile(`\bHTTP ([0-9]{3})\b`)
	urlInText  = regexp.MustCompile(`[a-z0-9]+://[^'" ]+`)
)

func isNetworkError(e *queryError) bool {
	return e.kind == "HTTP" || e.kind == "IO" && (strings.Contains(e.message, "error for HTTP") || strings.Contains(e.message, "HTTP error"))
}

// networkFailure returns a failure that names the host and the status. It is retryable unless the status means that
// the request itself is wrong.
func networkFailure(e *queryError) error {
	host, status := "", 0
	if parsed, err := url.Parse(urlInText.FindString(e.message)); err == nil {
		host = parsed.Host
	}
	if found := httpStatus.FindStringSubmatch(e.message); found != nil {
		status, _ = strconv.Atoi(found[1]) // digits
	}
	text := host + " did not answer"
	if status != 0 {
		text = fmt.Sprintf("%s answered %d %s", host, status, http.StatusText(status))
	}
	wrong := status >= 400 && status < 500 && !slices.Contains([]int{
		http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests,
	}, status)
	return &failure{CodeNetwork, event.CategoryTransient, !wrong, fmt.Errorf("%s: %w", text, e)}
}
