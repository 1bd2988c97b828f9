package project

import (
	"errors"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// Limits of an asset.
const (
	maxKeyPart = 128
	maxList    = 1_000
)

// newAsset returns an asset with the project's defaults. Its place is the start of the file until its key is read.
func (l *loader) newAsset(file string) *declared {
	d := l.project.Defaults
	return &declared{
		Asset: plan.Asset{
			File: file, Retries: d.Retries, TimeoutSec: d.TimeoutSec, HeartbeatTimeoutSec: d.HeartbeatTimeoutSec,
			Pool: d.Pool, Priority: d.Priority, Keep: d.Keep, WorkerQueue: "default", TriggerRule: event.RuleAllSuccess,
		},
		samples: quality.DefaultSamples,
		at:      place{file: file, line: 1, column: 1},
	}
}

// keyOfPath returns the key that a file's path implies: the last folder and the file's name.
func keyOfPath(file string) string {
	folder, name := path.Split(strings.TrimPrefix(file, AssetsDir+"/"))
	name = strings.TrimSuffix(name, path.Ext(name))
	if folder == "" {
		return "default/" + name
	}
	return path.Base(folder) + "/" + name
}

// reserved are the namespaces that DuckDB itself uses. In `servo query`, the tables of the state are in main.
var reserved = []string{"information_schema", "main", "memory", "pg_catalog", "system", "temp"}

// setKey sets an asset's key, or reports an invalid one.
func (l *loader) setKey(a *declared, at place, key, suggestion string) {
	a.at = at
	parsed, err := ids.ParseAssetKey(key)
	switch {
	case err != nil:
		l.report(at, suggestion, "invalid asset key %s: expected namespace/name using a-z, 0-9 and _", quoteShort(key))
	case len(parsed.Namespace) > maxKeyPart || len(parsed.Name) > maxKeyPart:
		l.report(at, "", "asset key %s is too long: namespace and name may have at most %d characters each", quoteShort(key), maxKeyPart)
	case slices.Contains(reserved, parsed.Namespace):
		l.report(at, "use another namespace", "the namespace %s belongs to DuckDB", parsed.Namespace)
	default:
		a.Key = parsed
	}
}

// setKeyOfPath sets the key that the file's path implies.
func (l *loader) setKeyOfPath(a *declared) {
	l.setKey(a, a.at, keyOfPath(a.File), "rename the file, or set the key with the field asset")
}

// readYAMLAssets reads a file with one asset or a list of assets.
func (l *loader) readYAMLAssets(name string, text []byte) {
	f := yamlFile{l, name}
	n := f.parse(text)
	switch {
	case n == nil || isNull(n):
		if len(l.problems) == 0 || l.problems[len(l.problems)-1].File != name {
			l.report(place{file: name}, "declare one, or remove the file", "the file declares no asset")
		}
	case n.Kind == yaml.MappingNode && hasField(n, "assets"):
		f.mapping(n, "a file with a list of assets", fields{"assets": func(n *yaml.Node) {
			f.each(n, "assets", func(item *yaml.Node) { f.commandAsset(item, true) })
		}})
	default:
		f.commandAsset(n, false)
	}
}

// commandAsset reads an asset that runs a command.
func (f yamlFile) commandAsset(n *yaml.Node, listed bool) {
	a := f.newAsset(f.name)
	a.at = f.place(n)
	if !f.assetFields(n, a, commandFields.fields(f, a)) {
		f.nameless = true
		return
	}
	if a.Key == (ids.AssetKey{}) && !hasField(n, "asset") {
		if listed {
			f.fail(n, "add asset: namespace/name", "an asset in a list needs a key")
		} else {
			f.setKeyOfPath(a)
		}
	}
	if !hasField(n, "run") {
		f.fail(n, `add run: {command: ["program", "argument"]}, or move a query to a .sql file`, "the asset has neither a query nor a command")
	}
	if a.Work.Output == plan.OutputNone && hasField(n, "keep") {
		f.fail(n, "remove keep, or remove output: none", "the asset has no outputs to keep")
	}
	f.checkTwice(n, &a.Work)
	f.checkedFields(n, a)
	f.assets = append(f.assets, *a)
}

// commandFields are the fields that only assets with a command have.
var commandFields = table[declared]{
	other("run", runFields.shape(shape{
		Description: "The command that computes the asset.",
		Examples:    []any{map[string]any{"command": []any{"python3", "scripts/chart.py"}}},
	}, "command"), yamlFile.run),
	other("env", variablesShape(maxList, shape{Type: []string{"string", "number", "boolean"}}, shape{
		Description: "Environment variables of the command, in plain text: they are stored with every plan. " +
			"Names have letters, digits and _; SERVO_ is reserved.",
		Examples: []any{map[string]any{"LOG_LEVEL": "debug"}},
	}), func(f yamlFile, n *yaml.Node, a *declared) { a.Work.Env = f.env(n) }),
	other("secrets", variablesShape(plan.MaxSecrets, secretShape(), shape{
		Description: "Environment variables of the command, by reference: file:NAME, env:VARIABLE, or gcp:projects/PROJECT/secrets/SECRET " +
			"with an optional /versions/VERSION.",
		Examples: []any{map[string]any{"API_TOKEN": "file:api-token"}},
	}), func(f yamlFile, n *yaml.Node, a *declared) { a.Work.Secrets = f.secrets(n) }),
	other("vars", shape{
		Type: "array", Items: &shape{Type: "string", Pattern: plan.VarPattern}, MaxItems: plan.MaxVars,
		Description: "The variables of " + ConfigFile + " that the command reads, as SERVO_VAR_NAME. A query needs no list.",
		Examples:    []any{[]any{"currency"}},
	}, func(f yamlFile, n *yaml.Node, a *declared) { f.declaredVars(n, &a.Work) }),
	other("output", shape{
		AnyOf: []*shape{
			{Enum: []string{outputFiles, plan.OutputNone}},
			new(textFields.shape(shape{Description: "Text files that become the table of the asset."}, "format")),
		},
		Examples: []any{plan.OutputNone, map[string]any{"format": "csv"}},
		Description: "none: the command leaves no files. Other assets can wait for this asset, and read nothing from it. " +
			"files: CSV and JSON files do not become a table. A mapping describes the text files that become the table. " +
			"Default: files of one text format become the table, unless there are Parquet files.",
	}, yamlFile.output),
}

// textFields are the fields of `output` that describe text files.
var textFields = table[plan.TextOutput]{
	choice("format", shape{Description: "The format of the files: csv (.csv, .tsv), json (.json), ndjson (.ndjson, .jsonl), each also with .gz or .zst."},
		plan.TextFormats, func(t *plan.TextOutput) *string { return &t.Format }),
	other("delimiter", shape{
		Type: "string", Pattern: `^[^"\r\n]$`, PatternHelp: "Write one character.", Examples: []any{";"},
		Description: "The character between fields of CSV. Default: a comma, and a tab in .tsv files.",
	}, func(f yamlFile, n *yaml.Node, t *plan.TextOutput) { f.delimiter(n, t) }),
	other("header", shape{Type: "boolean", Default: true, Description: "The first line of CSV has the names of the columns. Without it they are column0, column1, …."},
		func(f yamlFile, n *yaml.Node, t *plan.TextOutput) {
			header := true
			f.boolean(n, "header", &header)
			t.NoHeader = !header
		}),
	listing("nulls", shape{Description: "Texts in CSV that mean NULL, besides the empty text.", Examples: []any{[]any{"n/a"}}},
		func(t *plan.TextOutput) *[]string { return &t.Nulls }),
	other("date_format", shape{
		Type: "string", Examples: []any{"%d.%m.%Y"},
		Description: "The format of the columns that `columns` declares as DATE, in the notation of DuckDB's strptime. Default: dates like 2025-01-15.",
	}, func(f yamlFile, n *yaml.Node, t *plan.TextOutput) { t.DateFormat, _ = f.text(n, "date_format") }),
}

var runFields = table[plan.Work]{
	other("command", shape{
		Type: "array", Items: &shape{Type: "string"}, MinItems: 1, MaxItems: maxList,
		Description: "The program and its arguments. It runs in the project's folder, without a shell.",
		Examples:    []any{[]any{"python3", "scripts/chart.py"}},
	}, func(f yamlFile, n *yaml.Node, w *plan.Work) { w.Command = f.command(n) }),
	other("exit_codes", shape{
		Type: "object", PropertyNames: &shape{Pattern: `^([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])$`},
		Additional:  shape{Enum: event.Categories()[1:]},
		Description: "The category of error that an exit status from 1 to 255 means. By default 75 is transient, 78 is configuration, and others are user.",
		Examples:    []any{map[string]any{"3": "transient", "4": "input"}},
	}, func(f yamlFile, n *yaml.Node, w *plan.Work) { w.ExitCodes = f.exitCodes(n) }),
	choice("input_format", shape{Description: "The format of the input files that the command reads.", Default: plan.FormatParquet},
		[]string{plan.FormatParquet, plan.FormatCSV}, func(w *plan.Work) *string { return &w.InputFormat }),
}

// exitCodes reads a mapping from exit statuses to categories of errors.
func (f yamlFile) exitCodes(n *yaml.Node) map[string]string {
	const greatest = 255
	found, known := map[string]string{}, fields{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if status, err := strconv.Atoi(key.Value); err != nil || status < 1 || status > greatest || strconv.Itoa(status) != key.Value {
			f.fail(key, "write a number from 1 to 255", "invalid exit status %s", quoteShort(key.Value))
		}
		known[key.Value] = func(n *yaml.Node) {
			var category string
			f.oneOf(n, "the category of exit status "+key.Value, event.Categories()[1:], &category)
			found[key.Value] = category
		}
	}
	f.mapping(n, "exit_codes", known)
	return found
}

// run reads the field `run`, which contains the command of an asset.
func (f yamlFile) run(n *yaml.Node, a *declared) {
	f.mapping(n, "run", runFields.fields(f, &a.Work))
	if n.Kind == yaml.MappingNode && !hasField(n, "command") {
		f.fail(n, `add command: ["program", "argument"]`, "run has no command")
	}
}

// outputFiles is the value of `output` for commands whose text files are not converted to a table.
const outputFiles = "files"

// output reads the field output, which describes the files that the tasks of an asset write.
func (f yamlFile) output(n *yaml.Node, a *declared) {
	a.Work.Output, a.Work.Text = "", nil
	if n.Kind == yaml.MappingNode {
		f.textOutput(n, &a.Work)
		return
	}
	output := ""
	f.oneOf(n, "output", []string{outputFiles, plan.OutputNone}, &output)
	switch output {
	case plan.OutputNone:
		a.Work.Output = output
	case outputFiles:
		a.Work.Text = &plan.TextOutput{Format: plan.TextNone}
	}
}

// textOutput reads the format of text files that are converted to a table.
func (f yamlFile) textOutput(n *yaml.Node, w *plan.Work) {
	t := &plan.TextOutput{}
	known := textFields.fields(f, t)
	known["convert"] = func(n *yaml.Node) {
		f.fail(n, "write output: files, which keeps text files as they are, without a table", "convert is not supported: text files with a format always become Parquet")
	}
	f.mapping(n, "output", known)
	if !hasField(n, "format") {
		f.fail(n, "add format: csv", "output has no format")
		return
	}
	if t.Format != "csv" {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key := resolve(n.Content[i]); slices.Contains([]string{"delimiter", "header", "nulls"}, key.Value) {
				f.fail(key, "remove it", "%s is for CSV, but the format is %s", key.Value, t.Format)
			}
		}
	}
	w.Text = t
}

// delimiter reads the character that separates fields.
func (f yamlFile) delimiter(n *yaml.Node, t *plan.TextOutput) {
	text, ok := f.text(n, "delimiter")
	if !ok {
		return
	}
	if r := []rune(text); len(r) != 1 || strings.ContainsAny(text, "\"\r\n\x00\ufffd") {
		f.fail(n, "write, for example, \";\" or \"\\t\"", "delimiter must be one character, and no quote or line end")
		return
	}
	t.Delimiter = text
}

// queryFields are the fields that only assets with a query have.
var queryFields = table[declared]{usesField}

// refusedInQuery contains the fields that only commands may have. If the header of a query has such a field, the
// function of the field reports why it is not allowed.
func (f yamlFile) refusedInQuery() fields {
	refuse := func(message, suggestion string) func(*yaml.Node) {
		return func(n *yaml.Node) { f.fail(n, suggestion, "%s", message) }
	}
	return fields{
		"run":     refuse("the asset has both a query and a command", "declare the command in a separate .yaml file"),
		"env":     refuse("a query has no environment", "env is for commands"),
		"secrets": refuse("a query cannot have secrets", "secrets are for commands"),
		"vars":    refuse("a query has no list of variables", "write getvariable('"+plan.VarPrefix+"NAME')"),
		"output":  refuse("a query has exactly one output: its rows", "output is for commands"),
	}
}

// assetFields reads the fields that every asset has, and those in extra. It reports whether n is a mapping.
func (f yamlFile) assetFields(n *yaml.Node, a *declared, extra fields) bool {
	known := assetFields.fields(f, a)
	known["uses"] = func(n *yaml.Node) { // for queries, [usesField] replaces this function
		f.fail(n, "remove it", "uses is for queries: a command has no extensions of DuckDB")
	}
	f.mapping(n, "an asset", known.merged(extra))
	return n.Kind == yaml.MappingNode
}

// assetFields are the fields of every asset.
var assetFields = table[declared]{
	other("asset", typed("key", shape{Description: "The key, namespace/name. Default: the file's folder and name. " +
		"A file directly in " + AssetsDir + " has the namespace default, which SQL must quote: FROM \"default\".NAME. Required in a list."}),
		func(f yamlFile, n *yaml.Node, a *declared) {
			if s, ok := f.text(n, "asset"); ok {
				f.setKey(a, f.place(n), s, keySuggestion(s))
			}
		}),
	other("description", shape{Type: "string", Description: "A description of the asset.", Examples: []any{"Rain by city and month."}},
		func(f yamlFile, n *yaml.Node, a *declared) { a.Description, _ = f.text(n, "description") }),
	listing("owners", shape{Description: "Who is responsible for the asset.", Examples: []any{[]any{"weather@example.com"}}},
		func(a *declared) *[]string { return &a.Owners }),
	listing("tags", shape{Description: "Words for finding and selecting the asset.", Examples: []any{[]any{"report", "daily"}}},
		func(a *declared) *[]string { return &a.Tags }),
	other("deps", shape{
		Type: "array", MaxItems: maxList,
		Items: &shape{AnyOf: []*shape{
			{Type: "string", Pattern: "^[a-z0-9_]+/[a-z0-9_]+$", PatternHelp: "Write namespace/name, of a-z, 0-9 and _."},
			new(depFields.shape(shape{Description: "A dependency and how it is read."}, "asset")),
		}},
		Description: "Assets that this one waits for and reads. A query needs to list an asset only if it does not select from the asset, or to set `map`.",
		Examples:    []any{[]any{"raw/weather"}},
	}, yamlFile.deps),
	other("partitions", partitionsShape(), yamlFile.partitions),
	other("partition_columns", shape{
		Type: "boolean", Default: true, Examples: []any{false},
		Description: "Readers of the asset get the dimensions of its partitions as columns, unless its files have columns of these names.",
	}, yamlFile.partitionColumns),
	other("merge", shape{
		Type: "boolean", Default: true, Examples: []any{false},
		Description: "Small outputs of neighbouring partitions are also copied to merged files, which make reading many partitions faster. false: there are no such copies.",
	}, yamlFile.merge),
	batchField,
	requiresField(func(a *declared) *string { return &a.Requires }),
	retriesField(func(a *declared) *plan.Retries { return &a.Retries }),
	timeoutField(func(a *declared) *int32 { return &a.TimeoutSec }),
	heartbeatField(func(a *declared) *int32 { return &a.HeartbeatTimeoutSec }),
	poolField(func(a *declared) *string { return &a.Pool }),
	priorityField(func(a *declared) *int32 { return &a.Priority }),
	keepField(func(a *declared) *plan.Keep { return &a.Keep }),
	publishField,
	codeField, versionField,
	other("columns", columnTypesShape(shape{AnyOf: []*shape{{Type: "string"}, new(contractFields.shape(shape{}, "type"))}}, shape{
		Description: "The columns of the output, by name: each a type in SQL, or a mapping of type and not_null. An output with other columns or types is not published.",
		Examples:    []any{map[string]any{"city": "VARCHAR", "rain": map[string]any{"type": "DOUBLE", "not_null": true}}},
	}), yamlFile.columns),
	choice("schema_drift", shape{
		Description: "The severity of a check that compares the columns with the columns of the newest output. off: do not report a difference. Default: the report of the run names a difference.",
	}, []string{"critical", "error", "warning", "info", driftOff}, func(a *declared) *string { return &a.Work.SchemaDrift }),
	other("checks", shape{
		Type: "array", Items: &shape{Ref: "#/definitions/check"}, MaxItems: quality.MaxChecks,
		Description: "The conditions that the output must satisfy before it is published.",
		Examples:    []any{[]any{map[string]any{"not_null": []any{"city"}}, map[string]any{"row_count": map[string]any{"min": 1}}}},
	}, yamlFile.checks),
	whole("samples", shape{Description: "How many failing rows of a check are kept. 0: none.", Default: quality.DefaultSamples},
		0, quality.MaxSamples, func(a *declared) *int { return &a.samples }),
	other("quarantine", quarantineFields.shape(shape{
		Description: "Keeps an output that a critical check has blocked, so that people can look at it and decide. Without quarantine, such an output is deleted.",
	}), yamlFile.quarantine),
	deadlineField, freshnessField, assetSLAField,
	other("resources", resourceFields.shape(shape{
		Description: "The resources that one task of the asset may use, instead of the worker's default share. A change makes nothing stale.",
		Examples:    []any{map[string]any{"memory": "8GB", "threads": 8}},
	}), yamlFile.resources),
	other("queue", typed("name", shape{Description: "The queue of workers that executes the tasks.", Default: "default"}),
		func(f yamlFile, n *yaml.Node, a *declared) { f.setName(n, "queue", &a.WorkerQueue) }),
	choice("trigger_rule", shape{Description: "When a task starts, given how its upstream tasks ended.", Default: event.RuleAllSuccess},
		[]string{event.RuleAllSuccess, event.RuleNoneFailed, event.RuleAllDone}, func(a *declared) *string { return &a.TriggerRule }),
}

// resourceFields are the fields of `resources`.
var resourceFields = table[plan.Resources]{
	other("memory", typed("size", shape{
		Description: "Memory of a query, and SERVO_MEMORY_BYTES of a command: 16MB to 1PB. A task waits until the memory of all running tasks fits.",
	}), func(f yamlFile, n *yaml.Node, r *plan.Resources) { f.memory(n, "memory", &r.MemoryBytes) }),
	whole("threads", shape{Description: "The number of threads of a query. A command gets it in SERVO_THREADS.", Examples: []any{8}},
		1, maxConcurrency, func(r *plan.Resources) *int { return &r.Threads }),
}

// resources reads the resources that one task of an asset may use.
func (f yamlFile) resources(n *yaml.Node, a *declared) {
	r := &plan.Resources{}
	f.mapping(n, "resources", resourceFields.fields(f, r))
	if *r != (plan.Resources{}) {
		a.Work.Resources = r
	}
}

// keySuggestion suggests a valid key that is close to s.
func keySuggestion(s string) string {
	fixed := strings.ToLower(strings.NewReplacer("-", "_", " ", "_", ".", "/").Replace(strings.TrimSpace(s)))
	if _, err := ids.ParseAssetKey(fixed); err == nil {
		return didYouMean(fixed)
	}
	return "write, for example, raw/weather"
}

func (f yamlFile) oneOf(n *yaml.Node, what string, allowed []string, to *string) {
	s, ok := f.text(n, what)
	switch {
	case !ok:
	case slices.Contains(allowed, s):
		*to = s
	default:
		f.fail(n, didYouMean(plan.Suggest(s, allowed)), "%s is %s; must be one of %s", what, quoteShort(s), strings.Join(allowed, ", "))
	}
}

// listOf formats a command line as a list of its words.
func listOf(line string) string {
	words := strings.Fields(line)
	for i, word := range words {
		words[i] = quoteShort(word)
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// command reads a program and its arguments.
func (f yamlFile) command(n *yaml.Node) []string {
	if n.Kind == yaml.ScalarNode {
		f.fail(n, "write "+listOf(n.Value), "command must be a list, got %s", kindOf(n))
		return nil
	}
	words := f.texts(n, "command")
	if n.Kind == yaml.SequenceNode && (len(n.Content) == 0 || (len(words) > 0 && words[0] == "")) {
		f.fail(n, "", "command is empty: its first item is the program")
	}
	if len(words) > maxList {
		f.fail(n, "", "a command may have at most %d items", maxList)
	}
	if i := scriptOf(words); i >= 0 && len(words) == len(n.Content) {
		if _, err := fs.Stat(f.files, path.Clean(words[i])); errors.Is(err, fs.ErrNotExist) {
			f.fail(n.Content[i], f.nearFile(words[i]), "the file %s does not exist", quoteShort(words[i]))
		}
	}
	return words
}

// nearFile suggests the file of the same folder whose name is most similar to a wrong name.
func (f yamlFile) nearFile(name string) string {
	entries, err := fs.ReadDir(f.files, path.Clean(path.Dir(name)))
	if err != nil {
		return ""
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return didYouMean(plan.Suggest(path.Base(name), names))
}

// interpreters are programs whose arguments name a script.
var interpreters = regexp.MustCompile(`^(python[0-9.]*|(ba|da|z)?sh|node|Rscript|perl|ruby|julia)$`)

// scriptOf finds the item of a command that is certainly the path of a program or a script in the project's folder. It
// returns the index of the item, or -1.
func scriptOf(command []string) int {
	inProject := func(name string) bool { return fs.ValidPath(path.Clean(name)) && !strings.ContainsAny(name, "*?[") }
	if len(command) == 0 {
		return -1
	}
	if strings.Contains(command[0], "/") && inProject(command[0]) {
		return 0
	}
	if !interpreters.MatchString(path.Base(command[0])) {
		return -1
	}
	for i, word := range command[1:] {
		switch {
		case strings.HasPrefix(word, "-") && strings.ContainsAny(word, "cmeE"), word == "-":
			return -1 // the program may be an argument or a module
		case path.Ext(word) != "":
			if inProject(word) {
				return 1 + i
			}
			return -1
		}
	}
	return -1
}
