package plan

import (
	"fmt"
	"strings"
)

// Form is the form in which a user has written a request. Errors and warnings about the request name its options in
// this form.
type Form int

// The forms of a request.
const (
	Flags    Form = iota // flags of a command
	Fields               // members of a request to the API
	Schedule             // fields of a schedule in servo.yaml or in an asset file
	forms
)

// Option is an option of a request.
type Option int

// The options that errors and warnings name.
const (
	OptionPartitions Option = iota
	OptionUpstream
	OptionAllowIncomplete
	OptionAll
	OptionStale
	OptionMaxParallel
	OptionNewest
	OptionOrdered
	OptionChunk
)

// optionNames lists the names of each option, in the order of the forms. In a schedule, the options of backfills have
// no names.
var optionNames = [...][forms]string{
	OptionPartitions:      {"-p", "partitions", "partitions"},
	OptionUpstream:        {"--upstream", `"upstream": true`, "upstream: all"},
	OptionAllowIncomplete: {"--allow-incomplete", `"allow_incomplete": true`, "allow_incomplete: true"},
	OptionAll:             {"--all", `"all": true`, `assets: ["*"]`},
	OptionStale:           {"--stale", `"only": "stale"`, "upstream: stale"},
	OptionMaxParallel:     {"--max-parallel", "max_parallel", "max_parallel"},
	OptionNewest:          {"--order newest", `"order": "newest"`, "order"},
	OptionOrdered:         {"--ordered", "ordered", "ordered"},
	OptionChunk:           {"--chunk", "chunk", "chunk"},
}

// Name returns the name of an option.
func (f Form) Name(o Option) string { return optionNames[o][f] }

// Select formats a selection of partitions: "-p 2025-01-15", or `"partitions": ["2025-01-15"]`.
func (f Form) Select(selection string) string {
	switch {
	case f == Fields:
		return fmt.Sprintf(`"partitions": [%q]`, selection)
	case f == Schedule:
		return "partitions: " + selection
	case strings.ContainsAny(selection, "*;"):
		return "-p '" + selection + "'" // quoted for the shell
	}
	return "-p " + selection
}
