// Package ledgerschemas holds the JSON Schemas (2020-12) of the ledger: one for the envelope, and one
// for each payload type and version. They are the source of truth for the encoding of events.
//
// The folder named released contains each schema as it was last released. A released schema may only gain optional
// fields; any other change needs a new version.
package ledgerschemas

import (
	"embed"
	"fmt"
	"strings"
	"unicode"
)

//go:embed *.json
var files embed.FS

// Envelope is the name of the envelope's schema.
const Envelope = "envelope.v1.json"

// Name returns the file name of the schema of an event type and version:
// "task-finished.v1.json" for TaskFinished, 1.
func Name(eventType string, version int) string {
	var b strings.Builder
	for i, r := range eventType {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return fmt.Sprintf("%s.v%d.json", b.String(), version)
}

// Read returns the text of a schema, by its file name.
func Read(name string) ([]byte, error) {
	data, err := files.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read ledger schema %s: %w", name, err)
	}
	return data, nil
}

// Names returns the file names of all schemas, in order.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(fmt.Sprintf("ledgerschemas: cannot read the embedded folder: %v", err))
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}
