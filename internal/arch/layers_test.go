package arch_test

// layer is a row of the map: packages may import those of rows above them.
type layer struct {
	name     string
	packages []pack
}

// pack is a package, and the packages of this module that it may import. A new
// edge is a decision: it is made here, where a reviewer sees it (ADR 030).
type pack struct {
	path string
	may  []string
}

// layers is the map, from the words that everything is said in down to the
// wiring. Imports point up: to a row above. An edge within a row is marked with
// a "=" and is the exception.
var layers = []layer{
	{"ids", []pack{
		{"pkg/ids", nil},
		{"ledger-schemas", nil}, // the schemas as data
	}},
	{"words", []pack{
		{"pkg/event", []string{"pkg/ids"}},
	}},
	{"pure", []pack{
		{"pkg/state", words},
		{"pkg/fold", list(words, "=pkg/state")},
		{"pkg/control", list(words, "=pkg/state")},
		{"pkg/plan", words},
		{"pkg/contract", words},
	}},
	{"ports", []pack{
		{"pkg/clock", nil},
		{"pkg/latency", nil},
		{"pkg/identity", nil},
		{"pkg/trace", nil},
		{"pkg/trace/otlp", []string{"=pkg/trace"}},
		{"pkg/blob", nil},
		// Files on this machine, compared with what was recorded of them.
		{"pkg/filecheck", nil},
		{"pkg/blob/fileblob", []string{"=pkg/blob", "=pkg/clock"}},
		{"pkg/blob/memblob", []string{"=pkg/blob", "=pkg/clock"}},
		{"pkg/blob/faultblob", []string{"=pkg/blob", "=pkg/clock"}},
		{"pkg/blob/cloudblob", []string{"=pkg/blob", "=pkg/clock", "=pkg/latency"}},
		{"pkg/blob/gcsblob", []string{"=pkg/blob"}},
		{"pkg/blob/gcsblob/gcsfake", []string{"=pkg/blob", "=pkg/blob/cloudblob"}},
		{"pkg/queue", nil},
		{"pkg/queue/localqueue", []string{"=pkg/queue", "=pkg/clock"}},
		{"pkg/queue/cloudqueue", []string{"=pkg/queue", "=pkg/clock", "=pkg/latency"}},
		{"pkg/queue/cloudtasks", []string{"=pkg/queue", "=pkg/clock"}},
		{"pkg/queue/cloudtasks/cloudtasksfake", []string{"=pkg/queue"}},
		// What a reference to a secret looks like is the plan's to say.
		{"pkg/secret", []string{"pkg/plan"}},
		{"pkg/secret/gcpsecret", []string{"=pkg/secret"}},
	}},
	{"durable", []pack{
		{"pkg/ledger", list(words, "pkg/blob", "pkg/clock")},
		{"pkg/due", list(words, "pkg/blob")},
		{"pkg/table", list(words, "pkg/state")},
		// What leaves the ledger: its names and its bytes, in files as the tables have them.
		{"pkg/archive", list(words, "pkg/blob", "pkg/clock", "=pkg/ledger", "=pkg/table")},
		{"pkg/manifest", list(words, "pkg/blob", "pkg/clock")},
		// Which files hold a state is the manifest's; what is in them, the tables'.
		{"pkg/snapshot", list(words, "pkg/state", "pkg/clock", "=pkg/table", "=pkg/manifest")},
	}},
	{"compactor", []pack{
		// It asks control when its domain calls for attention, and carries out none of it.
		{"pkg/compactor", list(words, "pkg/state", "pkg/fold", "pkg/control", "pkg/contract", "pkg/blob", "pkg/clock",
			"pkg/ledger", "pkg/due", "pkg/archive", "pkg/manifest", "pkg/snapshot", "pkg/trace")},
	}},
	{"shells", []pack{
		{"pkg/dispatcher", list(words, "pkg/state", "pkg/fold", "pkg/control", "pkg/contract", "pkg/blob", "pkg/queue",
			"pkg/clock", "pkg/ledger", "pkg/manifest", "pkg/snapshot", "pkg/compactor", "pkg/trace")},
		{"pkg/sweeper", list(words, "pkg/state", "pkg/control", "pkg/contract", "pkg/blob", "pkg/queue",
			"pkg/clock", "pkg/ledger", "pkg/due", "pkg/manifest", "pkg/snapshot", "pkg/compactor")},
		{"pkg/repair", list(words, "pkg/state", "pkg/fold", "pkg/contract", "pkg/blob", "pkg/clock",
			"pkg/ledger", "pkg/due", "pkg/archive", "pkg/manifest", "pkg/snapshot", "pkg/compactor", "pkg/filecheck")},
		// What nothing needs any more: rows, plans and commit markers say it.
		{"pkg/gc", list(words, "pkg/state", "pkg/plan", "pkg/contract", "pkg/blob", "pkg/clock", "pkg/manifest", "pkg/snapshot")},
		// A worker knows the contract, and nothing of what orchestrates it.
		{"pkg/worker", list(words, "pkg/plan", "pkg/contract", "pkg/blob", "pkg/clock", "pkg/trace", "pkg/secret", "pkg/filecheck")},
		{"pkg/query/render", nil},
		// Commit markers say what the files of an asset's outputs were written with.
		{"pkg/query", list(words, "pkg/state", "pkg/contract", "pkg/blob", "pkg/table", "pkg/manifest", "pkg/filecheck", "=pkg/query/render")},
	}},
	{"engine", []pack{
		{"pkg/engine", list(words, "pkg/state", "pkg/fold", "pkg/plan", "pkg/contract", "pkg/blob", "pkg/clock",
			"pkg/ledger", "pkg/due", "pkg/archive", "pkg/manifest", "pkg/snapshot", "pkg/compactor", "pkg/trace")},
	}},
	{"services", []pack{
		// What the programs of a cloud have in common: they serve the shells.
		{"pkg/service", list(words, "pkg/control", "pkg/contract", "pkg/blob", "pkg/queue", "pkg/clock", "pkg/ledger",
			"pkg/manifest", "pkg/snapshot", "pkg/compactor", "pkg/dispatcher", "pkg/sweeper", "pkg/identity", "pkg/trace")},
	}},
	{"bindings", []pack{
		// What names in flags stand for.
		{"pkg/binding", []string{
			"pkg/blob", "pkg/blob/fileblob", "pkg/blob/gcsblob", "pkg/queue", "pkg/queue/localqueue",
			"pkg/queue/cloudtasks", "pkg/clock", "pkg/service", "pkg/identity",
		}},
	}},
	{"surface", []pack{
		{"pkg/project", list(words, "pkg/plan", "pkg/contract")},
		{"pkg/project/duckparse", []string{"=pkg/project"}},
		{"pkg/api", list(words, "pkg/state", "pkg/plan", "pkg/contract", "pkg/blob", "pkg/clock", "pkg/ledger",
			"pkg/manifest", "pkg/snapshot", "pkg/compactor", "pkg/dispatcher", "pkg/query", "pkg/engine")},
		{"pkg/embedded", list(words, "pkg/state", "pkg/control", "pkg/contract", "pkg/plan", "pkg/blob", "pkg/blob/fileblob",
			"pkg/queue", "pkg/queue/localqueue", "pkg/clock", "pkg/ledger", "pkg/manifest", "pkg/snapshot",
			"pkg/compactor", "pkg/dispatcher", "pkg/sweeper", "pkg/worker", "pkg/gc", "pkg/engine", "pkg/service", "pkg/trace",
			// The worker and the logs of its process hide the same secrets.
			"pkg/secret", "=pkg/api", "=pkg/project")},
	}},
	{"proof", []pack{
		// Whole systems in a simulated world.
		{proof, []string{everything}},
		// Whole systems on a cloud with latencies and a bill, in real time.
		{"pkg/cloudsim", []string{everything}},
	}},
	{"measurement", []pack{
		// Workloads on whole stacks, to be timed.
		{"pkg/bench", []string{everything}},
	}},
	{"command line", []pack{
		{"pkg/cli", []string{everything}},
	}},
	{"machine", []pack{
		{"cmd/internal/host", []string{everything}},
		{"cmd/internal/memory", nil},
	}},
	{"wiring", []pack{
		{"cmd/servo", []string{everything}},
		{"cmd/servo-compactor", []string{everything}},
		{"cmd/servo-dispatcher", []string{everything}},
		{"cmd/servo-sweeper", []string{everything}},
		{"cmd/servo-cloud", []string{everything}},
	}},
	{"beside", []pack{
		{"internal/arch", nil},
	}},
}

// everything allows all rows above.
const everything = "*"

// proof is a package that only tests run: it may use their suites and fixtures.
const proof = "pkg/sim"

// words are what every package but the ports may speak in.
var words = []string{"pkg/ids", "pkg/event"}

// pure packages decide and never act: no context, no clock, no I/O, no log.
var pure = []string{
	"pkg/ids", "pkg/event", "pkg/state", "pkg/fold", "pkg/control", "pkg/plan", "pkg/contract",
}

// banned are standard packages that a pure package has no use for. The function
// time.Now is kept out by the linter (forbidigo), since package time is fine.
var banned = []string{
	"context", "database/sql", "io/fs", "io/ioutil", "log", "log/slog", "math/rand", "math/rand/v2", "net", "net/http",
	"os", "os/exec", "os/signal", "path/filepath", "runtime", "syscall", "testing",
}

// heavy modules cost minutes to build and are kept where few packages pull them
// in: the tests of all others stay quick.
var heavy = map[string][]string{
	"github.com/apache/arrow-go/": {"pkg/table", "pkg/worker"},
	// What makes spans is light; what sends them brings gRPC: servo on a laptop does without.
	"go.opentelemetry.io/otel/exporters/": {"pkg/trace/otlp"},
	// So does what asks Google for secrets.
	"google.golang.org/api/secretmanager/": {"pkg/secret/gcpsecret"},
	"github.com/duckdb/":                   {"pkg/query", "pkg/worker", "pkg/project/duckparse", "pkg/cli", "cmd/servo"},
}

func list(head []string, tail ...string) []string {
	return append(append([]string{}, head...), tail...)
}
