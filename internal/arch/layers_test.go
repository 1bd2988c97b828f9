package arch_test

// layer is a row of the map of packages: see the variable layers. Its packages may import packages of the rows above
// it.
type layer struct {
	name     string
	packages []pack
}

// pack is a package and the packages of this module that it may import. A new import is a design decision (ADR 069).
// It must be added here, so that reviewers see it.
type pack struct {
	path string
	may  []string
}

// layers is the map of packages, from the vocabulary at the top to the programs at the bottom. A package imports only
// packages of rows above its own. An import within a row is an exception, marked with "=".
var layers = []layer{
	{"ids", []pack{
		{"pkg/ids", nil},
		{"ledger-schemas", nil}, // contains the event schemas as data
		// Contains the messages and services of the API, generated from proto/servo/v1.
		{"pkg/servov1", nil},
		{"pkg/servov1/servov1connect", []string{"=pkg/servov1"}},
	}},
	{"words", []pack{
		{"pkg/event", []string{"pkg/ids"}},
	}},
	{"pure", []pack{
		// Describes tables by their row types, and compares, merges and encodes their rows.
		{"pkg/table", words},
		{"pkg/state", list(words, "=pkg/table")},
		{"pkg/fold", list(words, "=pkg/state")},
		{"pkg/control", list(words, "=pkg/state")},
		// Describes the checks of assets as data and as SQL. Callers execute the SQL.
		{"pkg/quality", words},
		// Computes the instants of schedules, and contains the zone data that all packages use.
		{"pkg/calendar", words},
		// Describes partitions: dimensions, keys, selections and mappings.
		{"pkg/space", []string{"pkg/ids"}},
		{"pkg/plan", list(words, "=pkg/quality", "=pkg/space")},
		// Writes the SQL that reads partitioned assets. Callers execute the SQL.
		{"pkg/partcolumn", []string{"pkg/ids", "=pkg/plan", "=pkg/space"}},
		// Reads rows of CSV and JSON, and infers the types of their columns.
		{"pkg/textrows", nil},
		// Finds comments, literals and forbidden calls in SQL, and parses types.
		{"pkg/sqltext", nil},
		// Predicts the duration and size of a run from earlier attempts, which callers pass.
		{"pkg/estimate", nil},
		// Decides which partitions are stale. It compares their recorded versions and codes with the assets' definitions.
		{"pkg/staleness", list(words, "=pkg/space", "=pkg/plan", "=pkg/state")},
		// Divides the partitions of a backfill into chunks. Each chunk is one run.
		{"pkg/backfill", list(words, "=pkg/plan")},
		// Evaluates selections of assets on the graph of a plan.
		{"pkg/selector", list(words, "=pkg/plan")},
		// Describes unit tests of queries as data, and compares the rows of a query with the expected rows.
		{"pkg/testcase", list(words, "=pkg/plan")},
		{"pkg/contract", words},
		// Describes a compiled project as data: its fingerprints, and its differences from another one.
		{"pkg/release", list(words, "=pkg/quality", "=pkg/plan", "=pkg/space")},
	}},
	{"ports", []pack{
		{"pkg/clock", nil},
		{"internal/latency", nil},
		{"pkg/identity", nil},
		// Describes metrics as data, and declares the port through which code records them.
		{"pkg/metrics", nil},
		{"pkg/metrics/prom", []string{"=pkg/metrics"}},
		{"pkg/trace", nil},
		{"pkg/trace/otlp", []string{"=pkg/trace"}},
		{"pkg/blob", nil},
		// Compares local files with their recorded size and checksum.
		{"pkg/filecheck", nil},
		// Packs the files of projects, and keeps a cache of unpacked archives.
		{"pkg/source", nil},
		{"pkg/blob/fileblob", []string{"=pkg/blob", "=pkg/clock"}},
		{"internal/memblob", []string{"=pkg/blob", "=pkg/clock"}},
		{"internal/faultblob", []string{"=pkg/blob", "=pkg/clock"}},
		{"internal/cloudblob", []string{"=pkg/blob", "=pkg/clock", "=internal/latency"}},
		{"pkg/blob/gcsblob", []string{"=pkg/blob"}},
		{"internal/gcsfake", []string{"=pkg/blob", "=internal/cloudblob"}},
		{"pkg/queue", nil},
		{"pkg/queue/localqueue", []string{"=pkg/queue", "=pkg/clock"}},
		{"internal/cloudqueue", []string{"=pkg/queue", "=pkg/clock", "=internal/latency"}},
		{"pkg/queue/cloudtasks", []string{"=pkg/queue", "=pkg/clock"}},
		{"internal/cloudtasksfake", []string{"=pkg/queue"}},
		// pkg/plan defines the syntax of references to secrets.
		{"pkg/secret", []string{"pkg/plan"}},
		{"pkg/secret/gcpsecret", []string{"=pkg/secret"}},
		// Sends messages to channels; pkg/release defines the channels.
		{"pkg/notify", []string{"pkg/event", "pkg/release", "=pkg/clock", "=pkg/secret"}},
	}},
	{"responses", []pack{
		// Writes the responses of all HTTP servers.
		{"internal/httpx", []string{"pkg/contract"}},
	}},
	{"durable", []pack{
		{"pkg/ledger", list(words, "pkg/blob", "pkg/clock")},
		// This is the only package of the core that needs Arrow.
		{"pkg/table/parquetfile", []string{"pkg/table"}},
		// Stores the names and bytes of ledger entries, in files of the same format as tables.
		{"pkg/archive", list(words, "pkg/blob", "pkg/clock", "pkg/table", "=pkg/ledger", "=pkg/table/parquetfile")},
		{"pkg/manifest", list(words, "pkg/blob", "pkg/clock")},
		// Describes merged files, which are copies of many small outputs, and decides when readers use them.
		{"pkg/merged", list(words, "pkg/space", "pkg/contract", "pkg/blob")},
		// pkg/control computes when a state needs a wakeup, and a manifest names the wakeup.
		{"pkg/wakeup", list(words, "pkg/state", "pkg/control", "pkg/blob", "=pkg/manifest")},
		// pkg/manifest names the files of a state, and pkg/table/parquetfile reads and writes them.
		{"pkg/snapshot", list(words, "pkg/state", "pkg/blob", "pkg/clock", "pkg/table", "=pkg/table/parquetfile", "=pkg/manifest")},
		// Holds the ports that are shared by all code that works on a domain.
		{"pkg/domain", list(words, "pkg/blob", "pkg/clock", "=pkg/ledger", "=pkg/manifest", "=pkg/snapshot")},
	}},
	{"tiers", []pack{
		// Decides which rows move to which tier of files, and writes these files.
		{"pkg/tiers", list(words, "pkg/domain", "pkg/state", "pkg/fold", "pkg/manifest", "pkg/snapshot")},
	}},
	{"compactor", []pack{
		{"pkg/compactor", list(words, "pkg/domain", "pkg/state", "pkg/fold", "pkg/blob", "pkg/clock",
			"pkg/ledger", "pkg/wakeup", "pkg/archive", "pkg/manifest", "pkg/snapshot", "pkg/tiers", "pkg/trace")},
		// Serves and calls compactors over HTTP. pkg/compactor itself contains no transport.
		{"pkg/compactor/remote", list(words, "internal/httpx", "pkg/contract", "pkg/blob", "pkg/ledger", "=pkg/compactor")},
	}},
	{"shells", []pack{
		{"pkg/dispatcher", list(words, "internal/httpx", "pkg/domain", "pkg/state", "pkg/fold", "pkg/control", "pkg/contract", "pkg/blob", "pkg/queue",
			"pkg/clock", "pkg/ledger", "pkg/manifest", "pkg/snapshot", "pkg/compactor", "pkg/compactor/remote", "pkg/trace")},
		{"pkg/sweeper", list(words, "internal/httpx", "pkg/control", "pkg/contract", "pkg/blob", "pkg/queue",
			"pkg/clock", "pkg/ledger", "pkg/wakeup", "pkg/manifest", "pkg/snapshot", "pkg/compactor")},
		{"pkg/repair", list(words, "pkg/domain", "pkg/state", "pkg/fold", "pkg/plan", "pkg/contract", "pkg/blob", "pkg/clock",
			"pkg/ledger", "pkg/wakeup", "pkg/archive", "pkg/manifest", "pkg/snapshot", "pkg/compactor", "pkg/filecheck")},
		// Deletes outputs. Rows, plans and commit markers determine which outputs are garbage.
		{"pkg/gc", list(words, "pkg/domain", "pkg/state", "pkg/plan", "pkg/contract", "pkg/blob", "pkg/clock", "pkg/manifest", "pkg/merged", "pkg/snapshot")},
		// Maintains published places: it shows the visible outputs of assets under stable names.
		{"pkg/publisher", list(words, "pkg/contract", "pkg/snapshot")},
		// A worker imports the contract, but none of the packages that orchestrate workers.
		{"pkg/worker", list(words, "internal/httpx", "pkg/quality", "pkg/space", "pkg/plan", "pkg/partcolumn", "pkg/textrows", "pkg/sqltext", "pkg/testcase", "pkg/contract", "pkg/blob", "pkg/clock", "pkg/trace", "pkg/secret", "pkg/filecheck", "pkg/release", "pkg/source", "pkg/merged")},
		{"pkg/query/render", []string{"pkg/ids"}},
		// Imports pkg/contract to read commit markers: they record the settings with which an output's files were written.
		{"pkg/query", list(words, "pkg/space", "pkg/partcolumn", "pkg/textrows", "pkg/sqltext", "pkg/state", "pkg/contract", "pkg/blob", "pkg/table", "pkg/manifest", "pkg/filecheck", "=pkg/query/render")},
		{"pkg/query/arrowipc", []string{"pkg/sqltext", "=pkg/query", "=pkg/query/render"}},
	}},
	{"views", []pack{
		// Computes what users see of a state. It depends neither on a terminal nor on a protocol.
		{"pkg/engine/view", list(words, "pkg/calendar", "pkg/quality", "pkg/space", "pkg/state", "pkg/plan", "pkg/staleness")},
	}},
	{"engine", []pack{
		{"pkg/engine", list(words, "pkg/calendar", "pkg/domain", "pkg/space", "pkg/backfill", "pkg/release", "pkg/source", "pkg/engine/view", "pkg/estimate", "pkg/staleness", "pkg/quality", "pkg/state", "pkg/fold", "pkg/plan", "pkg/textrows", "pkg/contract", "pkg/blob", "pkg/clock",
			"pkg/ledger", "pkg/wakeup", "pkg/archive", "pkg/manifest", "pkg/snapshot", "pkg/compactor", "pkg/trace")},
	}},
	{"automator", []pack{
		// Plans requests, and asks the calendar for the next instants of schedules.
		{"pkg/automator", list(words, "pkg/calendar", "pkg/staleness", "pkg/state", "pkg/backfill", "pkg/fold", "pkg/control", "pkg/plan", "pkg/selector", "pkg/release", "pkg/clock", "pkg/snapshot", "pkg/engine")},
		// Sends the notifications that the fold has decided.
		{"pkg/notifier", list(words, "pkg/state", "pkg/fold", "pkg/control", "pkg/release", "pkg/clock", "pkg/notify", "pkg/snapshot", "pkg/engine")},
	}},
	{"services", []pack{
		// The cloud programs share this package. It serves compactor, dispatcher and sweeper over HTTP.
		{"pkg/service", list(words, "internal/httpx", "pkg/domain", "pkg/state", "pkg/control", "pkg/contract", "pkg/blob", "pkg/queue", "pkg/clock", "pkg/ledger",
			"pkg/manifest", "pkg/snapshot", "pkg/tiers", "pkg/compactor", "pkg/compactor/remote", "pkg/dispatcher", "pkg/sweeper", "pkg/engine", "pkg/automator", "pkg/notifier", "pkg/notify", "pkg/release", "pkg/identity", "pkg/trace", "pkg/metrics")},
	}},
	{"bindings", []pack{
		// Creates the stores and queues that flags name.
		{"pkg/binding", []string{
			"pkg/blob", "pkg/blob/fileblob", "pkg/blob/gcsblob", "pkg/queue", "pkg/queue/localqueue",
			"pkg/queue/cloudtasks", "pkg/clock", "pkg/plan", "pkg/secret", "pkg/secret/gcpsecret", "pkg/service", "pkg/identity",
		}},
	}},
	{"surface", []pack{
		{"pkg/project", list(words, "pkg/calendar", "pkg/estimate", "pkg/quality", "pkg/space", "pkg/plan", "pkg/selector", "pkg/release", "pkg/source", "pkg/testcase", "pkg/contract", "pkg/sqltext")},
		{"pkg/project/duckparse", []string{"pkg/plan", "pkg/sqltext", "=pkg/project"}},
		// Contains the files of the web page.
		{"pkg/ui", []string{"internal/httpx"}},
		// Encodes and decodes the JSON of the API.
		{"pkg/api/jsonpb", nil},
		// Translates REST requests into calls of a Connect handler in the same process.
		{"pkg/api/rest", []string{"pkg/servov1", "=pkg/api/jsonpb"}},
		{"pkg/api", list(words, "internal/httpx", "pkg/state", "pkg/contract", "pkg/plan", "pkg/selector", "pkg/calendar", "pkg/staleness", "pkg/blob", "pkg/manifest",
			"pkg/snapshot", "pkg/query", "pkg/query/arrowipc", "pkg/query/render", "pkg/engine", "pkg/engine/view", "pkg/servov1", "pkg/servov1/servov1connect", "=pkg/api/jsonpb", "=pkg/api/rest")},
		{"pkg/embedded", list(words, "internal/httpx", "pkg/domain", "pkg/state", "pkg/control", "pkg/contract", "pkg/plan", "pkg/blob", "pkg/blob/fileblob",
			"pkg/queue", "pkg/queue/localqueue", "pkg/clock", "pkg/ledger", "pkg/manifest", "pkg/snapshot",
			"pkg/compactor", "pkg/compactor/remote", "pkg/dispatcher", "pkg/automator", "pkg/notifier", "pkg/notify", "pkg/sweeper", "pkg/worker", "pkg/gc", "pkg/publisher", "pkg/engine", "pkg/service", "pkg/trace",
			// Imports pkg/secret because the worker and the process's log redact the same secrets.
			"pkg/secret", "=pkg/api", "=pkg/project")},
	}},
	{"proof", []pack{
		// Runs whole systems in a simulated world.
		{proof, []string{everything}},
		// Runs whole systems on a simulated cloud, in real time, with latencies and a bill.
		{"internal/cloudsim", []string{everything}},
		// Writes large states for measurements and tests.
		{"internal/corpus", []string{everything}},
	}},
	{"measurement", []pack{
		// Measures workloads on whole systems.
		{"internal/bench", []string{everything}},
	}},
	{"command line", []pack{
		{"pkg/cli", []string{everything}},
	}},
	{"memory", []pack{
		{"cmd/internal/memory", nil},
	}},
	{"machine", []pack{
		{"cmd/internal/host", []string{everything}},
	}},
	{"wiring", []pack{
		{"cmd/servo", []string{everything}},
		{"cmd/servo-compactor", []string{everything}},
		{"cmd/servo-dispatcher", []string{everything}},
		{"cmd/servo-sweeper", []string{everything}},
		{"cmd/servo-cloud", []string{everything}},
		{"cmd/servo-bench", []string{everything}},
	}},
	{"tools", []pack{
		{"internal/arch", nil},
		// Writes the bills of materials and the notices of the programs.
		{"internal/sbom", nil},
		// Packs the web page for embedding.
		{"internal/uipack", nil},
		// Writes the zone data of pkg/calendar.
		{"internal/zonepack", nil},
	}},
}

// everything permits imports from all rows above.
const everything = "*"

// programs are the programs that users install, which contain only the product.
var programs = []string{"cmd/servo", "cmd/servo-cloud", "cmd/servo-compactor", "cmd/servo-dispatcher", "cmd/servo-sweeper"}

// linkable are the packages outside of pkg that the programs may contain.
var linkable = []string{"cmd/internal/host", "cmd/internal/memory", "internal/httpx", "ledger-schemas"}

// proof is the simulator's package. Only tests run the simulator, so this package may import test suites and
// fixtures.
const proof = "internal/sim"

// stable are the packages that other modules may import (ADR 069).
var stable = []string{"pkg/event", "pkg/contract"}

// words are the packages that define the vocabulary. All packages may import them, except those that define ports.
var words = []string{"pkg/ids", "pkg/event"}

// pure packages only compute: they use no context, clock, I/O or log.
var pure = []string{
	"pkg/ids", "pkg/event", "pkg/table", "pkg/state", "pkg/fold", "pkg/control", "pkg/plan", "pkg/contract",
	"pkg/release", "pkg/staleness", "pkg/engine/view", "pkg/calendar", "pkg/backfill",
}

// banned are the standard packages that pure packages must not import. Package time is allowed, except time.Now, which
// the linter (forbidigo) forbids.
var banned = []string{
	"context", "database/sql", "io/fs", "io/ioutil", "log", "log/slog", "math/rand", "math/rand/v2", "net", "net/http",
	"os", "os/exec", "os/signal", "path/filepath", "runtime", "syscall", "testing",
}

// heavy contains the modules that take minutes to build, each with the packages that may import it. So the tests of all
// other packages build quickly.
var heavy = map[string][]string{
	"github.com/apache/arrow-go/": {"pkg/query/arrowipc", "pkg/table/parquetfile", "pkg/worker"},
	// Only pkg/trace/otlp sends spans. Sending spans needs gRPC, which the program servo must not contain; creating
	// spans does not.
	"go.opentelemetry.io/otel/exporters/": {"pkg/trace/otlp"},
	// Code that records metrics receives a recorder from its caller. pkg/service uses the Prometheus library only in a
	// test of the metrics' names and labels.
	"github.com/prometheus/": {"pkg/metrics/prom", "pkg/service"},
	// The client of Secret Manager also needs gRPC.
	"google.golang.org/api/secretmanager/": {"pkg/secret/gcpsecret"},
	// Only code that serves or calls the API links HTTP/2 and the codecs of the API.
	"connectrpc.com/":    {"pkg/servov1/servov1connect", "pkg/api"},
	"github.com/duckdb/": {"pkg/query", "pkg/worker", "pkg/project/duckparse", "pkg/cli", "cmd/servo"},
}

func list(head []string, tail ...string) []string {
	return append(append([]string{}, head...), tail...)
}
