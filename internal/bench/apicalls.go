package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/internal/corpus"
	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// APIConfig holds the settings of a measurement of the API.
type APIConfig struct {
	// Dir is the folder of the corpus. If it has no state, the corpus is written into it.
	Dir     string
	Size    corpus.Size
	Seed    uint64
	Samples int // number of calls of each kind
	// The expression Only selects the kinds of calls to measure, by name. Nil: all kinds.
	Only   *regexp.Regexp
	Clock  clock.Clock
	Logger *slog.Logger
	// Note reports progress.
	Note func(format string, args ...any)
}

// Call holds the measured times of one kind of call, in milliseconds.
type Call struct {
	Name    string  `json:"call"`
	Samples int     `json:"samples"`
	First   float64 `json:"first_ms"` // the first call, before anything is cached
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	Max     float64 `json:"max_ms"`
	Budget  float64 `json:"budget_ms"` // upper limit for P99; 0: none
}

// corpusStarted is the name of the file that records the size and the seed of a corpus, and the time of its newest
// rows.
const corpusStarted = "corpus.json"

// API measures calls of the API on a corpus, over HTTP on the loopback interface, with an embedded server in this
// process.
func API(ctx context.Context, cfg APIConfig) (calls []Call, err error) {
	c, err := cfg.corpus(ctx)
	if err != nil {
		return nil, err
	}
	graph, err := plan.NewGraph(c.Assets)
	if err != nil {
		return nil, err
	}
	project := &api.Project{Name: "corpus", Assets: c.Assets, Graph: graph}
	began := cfg.Clock.Now()
	stack, err := embedded.Start(ctx, embedded.Options{
		Dir: cfg.state(), Domain: Domain(), Clock: cfg.Clock, Logger: cfg.Logger, Actor: "bench",
		Routes: func(mux *http.ServeMux, e *engine.Engine, _ *worker.Worker) {
			api.Register(mux, api.Config{
				Engine: e, Project: func() (*api.Project, error) { return project, nil }, User: func(http.Header) string { return "bench" }, Logger: cfg.Logger,
			})
		},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	cfg.Note("the server started in %s", cfg.Clock.Now().Sub(began).Round(time.Millisecond))
	owner, err := embedded.ReadOwner(cfg.state())
	if err != nil {
		return nil, err
	}
	m := &apiCalls{cfg: cfg, corpus: c, stack: stack, url: stack.URL + "/v1", client: owner.Client(), random: rand.New(rand.NewPCG(cfg.Seed, 1))} //nolint:gosec // repeatable
	for _, kind := range m.kinds() {
		if cfg.Only != nil && !cfg.Only.MatchString(kind.name) {
			continue
		}
		one, err := m.measure(ctx, kind)
		if err != nil {
			return calls, fmt.Errorf("measure %s: %w", kind.name, err)
		}
		calls = append(calls, one)
		cfg.Note("%-44s first %9.2f ms, p50 %9.2f, p99 %9.2f", one.Name, one.First, one.P50, one.P99)
	}
	cfg.Note("the process used at most %d MiB", PeakRSS("self")>>20)
	return calls, nil
}

func (cfg *APIConfig) state() string { return filepath.Join(cfg.Dir, "state") }

// corpus opens or writes the corpus.
func (cfg *APIConfig) corpus(ctx context.Context) (*corpus.Corpus, error) {
	var made struct {
		corpus.Size
		Seed uint64
		Now  time.Time
	}
	path := filepath.Join(cfg.Dir, corpusStarted)
	raw, err := os.ReadFile(path) //nolint:gosec // the user chose this path
	if err == nil {
		if err := json.Unmarshal(raw, &made); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if made.Size != cfg.Size || made.Seed != cfg.Seed {
			return nil, fmt.Errorf("%s holds a corpus of another size or seed: name another folder", cfg.Dir)
		}
		return corpus.New(Domain(), made.Size, made.Seed, made.Now), nil
	}
	made.Size, made.Seed, made.Now = cfg.Size, cfg.Seed, cfg.Clock.Now()
	c := corpus.New(Domain(), made.Size, made.Seed, made.Now)
	if err := os.MkdirAll(cfg.state(), 0o700); err != nil {
		return nil, fmt.Errorf("create the folder of the corpus: %w", err)
	}
	cfg.Note("writing %d assets, %d runs, %d partitions, and a run of %d tasks", cfg.Size.Assets, cfg.Size.Runs, cfg.Size.Partitions, cfg.Size.Tasks)
	if err := c.Write(ctx, cfg.state()); err != nil {
		return nil, err
	}
	cfg.Note("written in %s", cfg.Clock.Now().Sub(made.Now).Round(time.Second))
	if raw, err = json.Marshal(made); err != nil {
		return nil, fmt.Errorf("describe the corpus: %w", err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return nil, fmt.Errorf("describe the corpus: %w", err)
	}
	return c, nil
}

// apiCalls makes calls.
type apiCalls struct {
	cfg    APIConfig
	corpus *corpus.Corpus
	stack  *embedded.Stack
	url    string
	client *http.Client
	random *rand.Rand
}

// kind is a kind of call.
type kind struct {
	name   string
	budget float64
	// path returns the path of the next call. The parameter answer is the answer to the previous call, or nil for the
	// first call.
	path func(answer map[string]any) string
	// skip is the number of calls that follow the first call and are not measured.
	skip int
	// prepare is called before each call, outside of the measured time; nil: nothing is called.
	prepare func(context.Context) error
}

func (m *apiCalls) measure(ctx context.Context, k kind) (Call, error) {
	var took []float64
	one := Call{Name: k.name, Budget: k.budget}
	var answer map[string]any
	for i := range k.skip + 1 + m.cfg.Samples {
		path := k.path(answer)
		if k.prepare != nil {
			if err := k.prepare(ctx); err != nil {
				return one, err
			}
		}
		began := m.cfg.Clock.Now()
		raw, err := m.get(ctx, path)
		ms := float64(m.cfg.Clock.Now().Sub(began).Microseconds()) / 1000
		if err != nil {
			return one, err
		}
		answer = nil
		if err := json.Unmarshal(raw, &answer); err != nil {
			return one, fmt.Errorf("GET %s: %w", path, err)
		}
		switch {
		case i == 0:
			one.First = ms
		case i > k.skip:
			took = append(took, ms)
		}
	}
	slices.Sort(took)
	one.Samples, one.P50, one.P99, one.Max = len(took), percentile(took, 50), percentile(took, 99), took[len(took)-1]
	return one, nil
}

func (m *apiCalls) get(ctx context.Context, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	answer, err := m.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	raw, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %.300s", path, answer.Status, raw)
	}
	return raw, nil
}

// runOther runs an asset that is not in the corpus, and waits for its end.
func (m *apiCalls) runOther(ctx context.Context) error {
	other := plan.Asset{Key: ids.AssetKey{Namespace: "bench", Name: "other"}, Work: plan.Work{Command: []string{"true"}}}
	handle, err := m.stack.Run(ctx, engine.RunRequest{
		Plan: plan.Request{Root: m.cfg.Dir, Assets: []plan.Asset{other}, All: true}, Trigger: event.Trigger{Type: "manual"},
	})
	if err != nil {
		return err
	}
	snap, err := m.stack.Current(ctx)
	for ; err == nil; snap, err = m.stack.Await(ctx, snap.Revision) {
		if run := snap.State.Runs.Get(handle.RunID); run != nil && run.State.Terminal() {
			return nil
		}
	}
	return err
}

// paging returns a function for [kind.path] that returns the path of the next page of a listing. After the last page
// it returns the first page again.
func paging(path string) func(map[string]any) string {
	return func(answer map[string]any) string {
		if token, _ := answer["next_page_token"].(string); token != "" {
			return path + "&page_token=" + url.QueryEscape(token)
		}
		return path
	}
}

// fixedPath returns a function that returns the same path for each call.
func fixedPath(path string) func(map[string]any) string {
	return func(map[string]any) string { return path }
}

// fewObjects is the number of runs or assets that calls request repeatedly. After enoughCalls calls, each of these
// objects has very probably been requested.
const fewObjects, enoughCalls = 20, 200

// deepPage is the number of a page that is far from the first one. Reading this page must take no longer than reading
// the first page.
const deepPage = 500

// kinds returns the kinds of calls that have a budget.
func (m *apiCalls) kinds() []kind {
	c := m.corpus
	asset := func() string { return "/assets/" + c.Assets[1+m.random.IntN(len(c.Assets)-1)].Key.String() }
	large := "/assets/" + c.LargeAsset().String()
	run := func() string { return "/runs/" + c.RunID(m.random.IntN(c.Runs)) }
	few := func(prefix string, key func(int) string) func(map[string]any) string {
		return func(map[string]any) string {
			return prefix + key(m.random.IntN(min(fewObjects, len(c.Assets)-1, c.Runs)))
		}
	}
	deep := func(rows, size int) int { return min(deepPage, max(0, rows/size-m.cfg.Samples-2)) }
	return []kind{
		{name: "GetRun", budget: 10, path: func(map[string]any) string { return run() }},
		{name: "GetRun, asked before", budget: 10, path: few("/runs/", c.RunID), skip: enoughCalls},
		{name: "ListTasks of a run of one task", budget: 10, path: func(map[string]any) string { return run() + "/tasks" }},
		{name: "GetRun of the large run", budget: 10, path: fixedPath("/runs/" + c.LargeRun())},
		{name: "ListRuns, first page of 100", budget: 10, path: fixedPath("/runs?page_size=100")},
		{name: "ListRuns, from page 500 on", budget: 20, path: paging("/runs?page_size=100"), skip: deep(c.Runs, 100)},
		{name: "ListRuns, rare filter, each page", budget: 200, path: paging("/runs?page_size=100&state=CANCELLED")},
		{name: "CountRuns of 24 hours", budget: 10, path: fixedPath("/run-counts")},
		{name: "CountRuns of 7 days", budget: 150, path: fixedPath("/run-counts?hours=168")},
		{name: "CountRuns of 31 days", budget: 150, path: fixedPath("/run-counts?hours=744")},
		{name: "ListTasks, first page of 100", budget: 10, path: fixedPath("/runs/" + c.LargeRun() + "/tasks?page_size=100")},
		{name: "ListTasks, from page 500 on", budget: 20, path: paging("/runs/" + c.LargeRun() + "/tasks?page_size=100"), skip: deep(c.Tasks, 100)},
		{name: "ListPartitions, first page of 100", budget: 10, path: fixedPath(large + "/partitions?page_size=100")},
		{name: "ListPartitions, from page 500 on", budget: 20, path: paging(large + "/partitions?page_size=100"), skip: deep(c.Partitions/10, 100)},
		{name: "ListAttention", budget: 10, path: fixedPath("/attention")},
		{name: "GetAsset", budget: 10, path: func(map[string]any) string { return asset() }},
		{name: "GetAsset, asked before", budget: 10, path: few("/assets/", func(i int) string { return c.Assets[1+i].Key.String() }), skip: enoughCalls},
		{name: "GetAsset of the large asset", budget: 10, path: fixedPath(large)},
		{name: "GetPartitionSummary of the large asset", budget: 10, path: fixedPath(large + "/partitions:summary?buckets=512")},
		{name: "ListAssets, first page of 100", budget: 0, path: fixedPath("/assets?page_size=100")},
		{name: "ListAssets, all pages of 1,000", budget: 0, path: paging("/assets?page_size=1000")},
		{name: "ListAssets, 100, after a run of another asset", budget: 150, path: fixedPath("/assets?page_size=100"), prepare: m.runOther},
	}
}
