package project

import (
	"cmp"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// A query can read data outside of Servo only if servo.yaml declares the data in `sources`, and the asset names the
// DuckDB extension in `uses`. An asset contains a copy of the settings of its extensions, so that a worker gets no
// other settings.

// external contains the fields of `sources` while the project is loaded.
type external struct {
	directory string
	httpfs    plan.External
	sqlite    plan.External
	// declared are the extensions that servo.yaml declares.
	declared map[string]bool
}

var sourcesField = other("sources", sourceFields.shape(shape{
	Description: "Data outside of Servo that queries read.",
	Examples: []any{map[string]any{
		"paths":      []any{"../reference", "/srv/landing"},
		"extensions": map[string]any{"httpfs": map[string]any{"prefixes": []any{"s3://landing/events/"}}},
	}},
}), func(f yamlFile, n *yaml.Node, p *Project) {
	f.mapping(n, "sources", sourceFields.fields(f, p))
})

var sourceFields = table[Project]{
	other("paths", shape{
		Type:        "array",
		Items:       &shape{Type: "string", Pattern: plan.SourcePathPattern, PatternHelp: "Write ../FOLDER or an absolute path, without names that begin with a dot, *, ?, [ or ]."},
		MaxItems:    plan.MaxSourcePaths,
		Description: "Folders outside of the project whose files every query may read. Relative paths begin with .. and are relative to the project.",
		Examples:    []any{[]any{"../reference", "/srv/landing"}},
	}, func(f yamlFile, n *yaml.Node, p *Project) { f.sourcePaths(n, p) }),
	other("extensions", extensionFields.shape(shape{
		Description: "The data that extensions of DuckDB reach. The setting `uses` of an asset lists the extensions that its query needs.",
		Examples:    []any{map[string]any{"sqlite": map[string]any{"attach": map[string]any{"crm": "reference/crm.sqlite"}}}},
	}), func(f yamlFile, n *yaml.Node, p *Project) {
		to := &external{declared: map[string]bool{}}
		known := extensionFields.fields(f, to)
		for _, name := range plan.Later {
			known[name] = func(n *yaml.Node) { f.unsupported(n, name) }
		}
		known[plan.ExtensionExcel] = func(n *yaml.Node) {
			f.fail(n, "remove it, and write uses: [excel] in the file of the asset", "excel has no settings: it reads files in the data folders")
		}
		f.mapping(n, "extensions", known)
		f.external, p.Extensions = to, cmp.Or(to.directory, plan.ExtensionsDir)
	}),
}

// extensionFields are the fields of sources.extensions.
var extensionFields = table[external]{
	other("directory", shape{
		Type: "string", MinLength: 1, Default: plan.ExtensionsDir, Examples: []any{"/opt/servo/extensions"},
		Description: "The folder with the files of extensions, relative to the project. `servo extension add` puts files there. Nothing is downloaded at run time.",
	}, func(f yamlFile, n *yaml.Node, e *external) {
		if s, ok := f.text(n, "directory"); ok {
			if s == "" || strings.ContainsRune(s, 0) {
				f.fail(n, "write, for example, "+plan.ExtensionsDir, "directory is not a path")
				return
			}
			e.directory = path.Clean(s)
		}
	}),
	other("httpfs", httpfsFields.shape(shape{
		Description: "Files behind URLs.",
		Examples:    []any{map[string]any{"prefixes": []any{"https://data.example.com/"}}},
	}, "prefixes"), func(f yamlFile, n *yaml.Node, e *external) {
		e.declared[plan.ExtensionHTTPFS] = true
		before := len(f.problems)
		f.mapping(n, "httpfs", httpfsFields.fields(f, &e.httpfs))
		if len(f.problems) == before && !hasField(n, "prefixes") {
			f.fail(n, `add prefixes: ["s3://bucket/folder/"]`, "httpfs has no prefixes, so no query could read anything with it")
		}
		f.checkScopes(n, &e.httpfs)
	}),
	other("sqlite", sqliteFields.shape(shape{
		Description: "Databases in files of SQLite.",
		Examples:    []any{map[string]any{"attach": map[string]any{"crm": "reference/crm.sqlite"}}},
	}, "attach"), func(f yamlFile, n *yaml.Node, e *external) {
		e.declared[plan.ExtensionSQLite] = true
		before := len(f.problems)
		f.mapping(n, "sqlite", sqliteFields.fields(f, &e.sqlite))
		if len(f.problems) == before && !hasField(n, "attach") {
			f.fail(n, "add attach: {NAME: FILE}", "sqlite has no databases, so no query could read anything with it")
		}
	}),
}

var httpfsFields = table[plan.External]{
	other("prefixes", shape{
		Type:        "array",
		Items:       &shape{Type: "string", Pattern: plan.PrefixPattern, PatternHelp: "Write s3://, gs://, http:// or https://, a bucket or a host, and folders, with / at the end."},
		MinItems:    1,
		MaxItems:    plan.MaxPrefixes,
		Description: "The beginnings of URLs that queries may read, each with / at its end. The schemes are s3, gs, gcs, https and http.",
		Examples:    []any{[]any{"s3://landing/events/", "https://data.example.com/"}},
	}, func(f yamlFile, n *yaml.Node, e *plan.External) {
		f.each(n, "prefixes", func(item *yaml.Node) {
			s, ok := f.text(item, "an item of prefixes")
			switch {
			case !ok:
			case strings.Contains(s, "@"):
				f.fail(item, "declare a secret of type http", "a prefix must not contain a user name or a password")
			case !plan.ValidPrefix(s):
				f.fail(item, "write, for example, s3://landing/events/ with / at the end, and without .. and user names", "invalid prefix %s", quoteShort(s))
			default:
				e.Prefixes = append(e.Prefixes, s)
			}
		})
		if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			f.fail(n, `add "s3://bucket/folder/"`, "prefixes is empty, so no query could read anything with httpfs")
		}
		if len(e.Prefixes) > plan.MaxPrefixes {
			f.fail(n, "", "the list has %d prefixes; at most %d are allowed", len(e.Prefixes), plan.MaxPrefixes)
		}
	}),
	other("secrets", shape{
		Type: "object", PropertyNames: &shape{Pattern: plan.AttachPattern}, MaxProperties: plan.MaxSecrets,
		Additional: func() any {
			s := externalSecretFields.shape(shape{Description: "A secret of DuckDB. The settings whose values are secret are references."}, "type")
			return &s
		}(),
		Description: "Secrets for the prefixes, by name.",
		Examples:    []any{map[string]any{"lake": map[string]any{"type": "s3", "key_id": "env:LAKE_KEY_ID", "secret": "file:lake-secret", "region": "eu-west-1"}}},
	}, func(f yamlFile, n *yaml.Node, e *plan.External) { f.externalSecrets(n, e) }),
}

var sqliteFields = table[plan.External]{
	other("attach", shape{
		Type: "object", PropertyNames: &shape{Pattern: plan.AttachPattern}, MaxProperties: plan.MaxAttached, MinProperties: 1,
		Additional: &shape{Type: "string", Pattern: plan.DatabasePattern, PatternHelp: "Write the path of a file in the project, or in a folder of sources.paths."},
		Description: "Files of databases, by the name that they have in SQL: crm.orders is the table orders of crm. " +
			"A file is in the project, or in a folder of `paths`. Queries cannot write to it.",
		Examples: []any{map[string]any{"crm": "reference/crm.sqlite"}},
	}, func(f yamlFile, n *yaml.Node, e *plan.External) { f.attached(n, e) }),
}

var externalSecretFields = table[plan.ExternalSecret]{
	choice("type", shape{Description: "The kind of secret: s3 for s3://, gcs for gs:// with an HMAC key, http for a token."},
		slices.Sorted(maps.Keys(plan.SecretTypes)), func(s *plan.ExternalSecret) *string { return &s.Type }),
	other("scope", shape{
		Type: "string", Pattern: plan.PrefixPattern, Examples: []any{"s3://landing/"},
		Description: "The beginning of the URLs for which the secret is used. Default: all URLs of its type. A secret of type http needs a scope.",
	}, func(f yamlFile, n *yaml.Node, s *plan.ExternalSecret) {
		if scope, ok := f.text(n, "scope"); ok {
			if s.Scope = scope; !plan.ValidPrefix(scope) {
				f.fail(n, "write, for example, s3://landing/", "invalid scope %s", quoteShort(scope))
			}
		}
	}),
	secretReference("key_id", "The id of the access key, by reference."),
	secretReference("secret", "The secret of the access key, by reference."),
	secretReference("session_token", "The token of a temporary access key, by reference."),
	secretReference("bearer_token", "The token of type http, by reference."),
	secretOption("region", `^[A-Za-z0-9-]{1,64}$`, "The region of the buckets.", "eu-west-1"),
	secretOption("endpoint", `^[A-Za-z0-9._-]+(:[0-9]{1,5})?$`, "The host of a service that is compatible with S3, optionally with a port.", "minio.example.com:9000"),
	secretOption("url_style", `^(path|vhost)$`, "Whether the bucket is in the path or in the host name.", "path"),
	other("use_ssl", shape{Type: "boolean", Default: true, Description: "false: HTTP instead of HTTPS.", Examples: []any{false}},
		func(f yamlFile, n *yaml.Node, s *plan.ExternalSecret) {
			use := true
			if f.boolean(n, "use_ssl", &use); !use {
				setOption(s, "use_ssl", "false")
			}
		}),
}

func secretReference(name, about string) field[plan.ExternalSecret] {
	s := secretShape()
	s.Description, s.Examples = about, []any{"env:LAKE_" + strings.ToUpper(name)}
	return other(name, s, func(f yamlFile, n *yaml.Node, to *plan.ExternalSecret) {
		if n.Kind != yaml.ScalarNode {
			f.fail(n, "", "a reference to a secret must be a string, got %s", kindOf(n))
			return
		}
		if _, err := plan.ParseSecret(n.Value); err != nil {
			f.fail(n, "write a reference to the secret, never its value", "%s is not a secret reference: %v", name, err)
			return
		}
		if to.References == nil {
			to.References = map[string]string{}
		}
		to.References[name] = n.Value
	})
}

func secretOption(name, pattern, about, example string) field[plan.ExternalSecret] {
	form := regexp.MustCompile(pattern)
	return other(name, shape{Type: "string", Pattern: pattern, Description: about, Examples: []any{example}},
		func(f yamlFile, n *yaml.Node, to *plan.ExternalSecret) {
			s, ok := f.text(n, name)
			switch {
			case !ok:
			case !form.MatchString(s):
				f.fail(n, "write, for example, "+example, "invalid %s %s", name, quoteShort(s))
			default:
				setOption(to, name, s)
			}
		})
}

func setOption(s *plan.ExternalSecret, name, value string) {
	if s.Options == nil {
		s.Options = map[string]string{}
	}
	s.Options[name] = value
}

// unsupported reports an extension that Servo cannot load yet.
func (f yamlFile) unsupported(n *yaml.Node, name string) {
	f.fail(n, "load the data with a command, and select from its asset", "the extension %s is not supported yet: queries use %s", name, strings.Join(plan.Extensions, ", "))
}

// sourcePaths reads the folders outside of the project that queries may read.
func (f yamlFile) sourcePaths(n *yaml.Node, p *Project) {
	count := 0
	f.each(n, "paths", func(item *yaml.Node) {
		name, ok := f.text(item, "an item of paths")
		if !ok {
			return
		}
		count++
		switch {
		case !plan.ValidSourcePath(name):
			suggestion := "write ../reference, or an absolute path; it must not contain *, ?, [ or names that begin with a dot"
			if plan.ValidDataFolder(name) {
				suggestion = "list folders of the project under data"
			}
			f.fail(item, suggestion, "invalid path %s", quoteShort(name))
		case name == p.Root || strings.HasPrefix(p.Root, name+"/"):
			f.fail(item, "name a folder beside the project", "%s contains the project", quoteShort(name))
		default:
			p.Data = append(p.Data, name)
		}
	})
	if count > plan.MaxSourcePaths {
		f.fail(n, "", "paths may list at most %d folders", plan.MaxSourcePaths)
	}
}

// externalSecrets reads the secrets of httpfs.
func (f yamlFile) externalSecrets(n *yaml.Node, e *plan.External) {
	f.named(n, "secrets", plan.MaxSecrets, func(name string, n *yaml.Node) {
		s := plan.ExternalSecret{Name: name}
		before := len(f.problems)
		f.mapping(n, "a secret", externalSecretFields.fields(f, &s))
		if len(f.problems) > before {
			return
		}
		if s.Type == "" {
			f.fail(n, "add type: s3", "the secret %s has no type", name)
			return
		}
		needed := plan.SecretTypes[s.Type]
		for _, reference := range needed {
			if s.References[reference] == "" {
				f.fail(n, "add "+reference+": env:VARIABLE", "the secret %s of type %s has no %s", name, s.Type, reference)
			}
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := resolve(n.Content[i])
			isBucket := s.Type != "http"
			switch key.Value {
			case "type", "scope":
			case "bearer_token":
				if isBucket {
					f.fail(key, "remove it", "bearer_token is for secrets of type http")
				}
			default:
				if !isBucket {
					f.fail(key, "remove it", "%s is not for secrets of type http", key.Value)
				}
			}
		}
		e.Secrets = append(e.Secrets, s)
	})
	slices.SortFunc(e.Secrets, func(a, b plan.ExternalSecret) int { return cmp.Compare(a.Name, b.Name) })
}

// checkScopes reports secrets whose scope covers no prefix, and HTTP secrets without a scope, because every server
// below a prefix would get such a secret.
func (f yamlFile) checkScopes(n *yaml.Node, e *plan.External) {
	for i := range e.Secrets {
		s := &e.Secrets[i]
		switch {
		case s.Type == "http" && s.Scope == "":
			f.fail(n, "add scope: https://HOST/", "the secret %s has no scope, so every server below a prefix would get the token of the secret", s.Name)
		case s.Scope != "" && !slices.ContainsFunc(e.Prefixes, func(p string) bool { return strings.HasPrefix(p, s.Scope) || strings.HasPrefix(s.Scope, p) }):
			f.fail(n, "change one of them", "the scope %s of the secret %s covers no prefix", s.Scope, s.Name)
		}
	}
}

// attached reads the files of attached databases.
func (f yamlFile) attached(n *yaml.Node, e *plan.External) {
	e.Attach = map[string]string{}
	f.named(n, "attach", plan.MaxAttached, func(name string, n *yaml.Node) {
		file, ok := f.text(n, "the file of a database")
		switch {
		case !ok:
		case !databaseFile.MatchString(file) || path.Clean(file) != file:
			f.fail(n, "write, for example, reference/crm.sqlite", "invalid file %s", quoteShort(file))
		case slices.Contains(ownDatabases, name):
			f.fail(n, "choose another name", "the name %s belongs to DuckDB", name)
		default:
			e.Attach[name] = file
		}
	})
}

// named reads a mapping whose keys are used as names in SQL.
func (f yamlFile) named(n *yaml.Node, what string, most int, read func(name string, n *yaml.Node)) {
	known := fields{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if !attachName.MatchString(key.Value) {
			f.fail(key, "use 1 to 63 of a-z, 0-9 and _, and begin with a letter", "invalid name %s", quoteShort(key.Value))
		}
		known[key.Value] = func(n *yaml.Node) { read(key.Value, n) }
	}
	f.mapping(n, what, known)
	if len(known) > most {
		f.fail(n, "", "%s has %d names; at most %d are allowed", what, len(known), most)
	}
	if n.Kind == yaml.MappingNode && len(known) == 0 && what == "attach" {
		f.fail(n, "add NAME: FILE", "attach names no database")
	}
}

var (
	attachName   = regexp.MustCompile(plan.AttachPattern)
	databaseFile = regexp.MustCompile(plan.DatabasePattern)
	// ownDatabases are names of DuckDB's own databases and schemas.
	ownDatabases = []string{"information_schema", "main", "memory", "pg_catalog", "system", "temp"}
)

// usesField is the field "uses", which queries have.
var usesField = other("uses", shape{
	Type: "array", Items: &shape{Enum: plan.Extensions}, MaxItems: len(plan.Extensions) + len(plan.Later),
	Description: "The extensions of DuckDB that the query uses: excel for files in the data folders, and httpfs and sqlite for the data that `sources` of " +
		ConfigFile + " declares. Without an extension, the query has no access to the network or to databases. A change makes the partitions stale.",
	Examples: []any{[]any{"excel"}},
}, func(f yamlFile, n *yaml.Node, a *declared) {
	f.each(n, "uses", func(item *yaml.Node) {
		name, ok := f.text(item, "an item of uses")
		switch {
		case !ok:
		case slices.Contains(plan.Later, name):
			f.unsupported(item, name)
		case !slices.Contains(plan.Extensions, name):
			f.fail(item, cmp.Or(didYouMean(plan.Suggest(name, plan.Extensions)), "use "+strings.Join(plan.Extensions, ", ")), "unknown extension %s", quoteShort(name))
		case slices.ContainsFunc(a.uses, func(p place) bool { return p.word == name }):
			f.fail(item, "remove one", "uses lists %s twice", name)
		default:
			a.uses = append(a.uses, f.place(item))
		}
	})
	f.setExternal(a)
})

// setExternal copies to an asset the settings of the extensions that it uses.
func (f yamlFile) setExternal(a *declared) {
	settings := f.external
	if settings == nil {
		settings = &external{}
	}
	a.Work.External = nil
	for _, at := range a.uses {
		e := plan.External{}
		switch at.word {
		case plan.ExtensionHTTPFS:
			e = settings.httpfs
		case plan.ExtensionSQLite:
			e = settings.sqlite
		}
		if at.word != plan.ExtensionExcel && !settings.declared[at.word] {
			f.report(at, "add sources: {extensions: {"+at.word+": …}} to it", "%s does not declare the data that %s may read", ConfigFile, at.word)
		}
		e.Extension, e.Directory = at.word, cmp.Or(settings.directory, plan.ExtensionsDir)
		a.Work.External = append(a.Work.External, e)
	}
	slices.SortFunc(a.Work.External, func(a, b plan.External) int { return cmp.Compare(a.Extension, b.Extension) })
}

// attachedTable reports whether a table is in an attached database. It reports a problem if the asset does not use
// the database.
func (l *loader) attachedTable(a *declared, ref Ref) bool {
	name := strings.ToLower(cmp.Or(ref.Catalog, ref.Schema))
	if l.external == nil || l.external.sqlite.Attach[name] == "" {
		return false
	}
	if a.Work.Uses(plan.ExtensionSQLite) == nil {
		l.report(a.queryPlace(ref.Offset), "add uses: [sqlite]", "read %s: the asset does not use sqlite", ref.name())
	}
	return true
}

// checkAttached reports attached databases that have the name of a namespace: crm.orders could mean a table of the
// database crm or an asset in the namespace crm.
func (l *loader) checkAttached() {
	if l.external == nil {
		return
	}
	for i := range l.assets {
		if a := &l.assets[i]; l.external.sqlite.Attach[a.Key.Namespace] != "" {
			l.report(a.at, "rename one of them", "the namespace of %s is also the name of a database in sources.extensions.sqlite.attach of %s", a.Key, ConfigFile)
		}
	}
}
