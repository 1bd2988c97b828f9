package service

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// help says what each metric counts. A name that is not here is a mistake.
var help = map[string]string{
	"servo_http_requests_total":       "Requests answered, by route and status.",
	"servo_refused_callers_total":     "Requests refused for who made them, by reason.",
	"servo_refused_callbacks_total":   "Callbacks refused: their signature is wrong or has expired.",
	"servo_store_requests_total":      "Requests to the object store, by operation, kind of object and result.",
	"servo_publishes_total":           "Manifest revisions published.",
	"servo_published_rows_total":      "Rows that published revisions changed.",
	"servo_publish_conflicts_total":   "Revisions that another writer published first.",
	"servo_compaction_failures_total": "Compactions that failed and were tried again.",
	"servo_queue_tasks_total":         "Queue tasks created, by queue kind and result.",
	"servo_dispatches_waiting":        "Tasks that wait for their tenant's turn to be queued.",
	"servo_handovers_total":           "Hand-overs to another service, by result.",
	"servo_sweeps_total":              "Sweeps, by kind (of the domains that are due, or full) and result.",
	"servo_swept_domains_total":       "Domains swept, by kind of sweep.",
	"servo_late_sweeps_total":         "Sweeps that found a marker 10 minutes late or more.",
	"servo_swept_groups_total":        "Ledger groups that nobody had announced and a sweep found.",
	"servo_domains_bytes":             "Memory that the open domains take, in bytes, about.",
	"servo_domains_open":              "Domains that the process keeps open.",
}

// metrics are the process's counters, served as Prometheus text. They are safe
// for concurrent use.
type metrics struct {
	mu     sync.Mutex
	values map[string]float64 // by name and labels as they are written out
}

func newMetrics() *metrics { return &metrics{values: map[string]float64{}} }

// Add adds to a series: a metric's name, then its labels' names and values.
func (m *metrics) Add(name string, n float64, labels ...string) {
	if help[name] == "" {
		panic("service: metric " + name + " has no help")
	}
	series := name
	if len(labels) > 0 {
		pairs := make([]string, 0, len(labels)/2) //nolint:mnd // a name and a value each
		for i := 0; i+1 < len(labels); i += 2 {
			pairs = append(pairs, fmt.Sprintf("%s=\"%s\"", labels[i], escape.Replace(labels[i+1])))
		}
		series += "{" + strings.Join(pairs, ",") + "}"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[series] += n
}

// escape is of label values, as the text format has it.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// ServeHTTP implements [http.Handler].
func (m *metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	values := maps.Clone(m.values)
	m.mu.Unlock()
	var text strings.Builder
	last := ""
	for _, series := range slices.SortedFunc(maps.Keys(values), compareSeries) {
		name, _, _ := strings.Cut(series, "{")
		if name != last {
			kind := "gauge"
			if strings.HasSuffix(name, "_total") {
				kind = "counter"
			}
			fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", name, help[name], name, kind)
			last = name
		}
		fmt.Fprintf(&text, "%s %g\n", series, values[series])
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(text.String()))
}

// compareSeries keeps the series of a metric together.
func compareSeries(a, b string) int {
	nameA, _, _ := strings.Cut(a, "{")
	nameB, _, _ := strings.Cut(b, "{")
	if c := strings.Compare(nameA, nameB); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}
