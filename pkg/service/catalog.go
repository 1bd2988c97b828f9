package service

import (
	"slices"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/metrics"
	"github.com/servo-orchestration/servo/pkg/sweeper"
)

// Names of the services' programs.
const (
	compactorName  = "servo-compactor"
	dispatcherName = "servo-dispatcher"
	sweeperName    = "servo-sweeper"
)

// Values of labels.
const (
	resultOK       = "ok"
	resultError    = "error"
	resultConflict = "conflict"
	kindDue        = "due"
	kindFull       = "full"
	noRoute        = "none"
)

// routes lists, for each service, the routes that are called all the time. The series of these routes exist, with the
// value 0, from the start of the service.
var routes = map[string][]string{
	compactorName:  {"POST /v1/compact", "POST /v1/notifications"},
	dispatcherName: {"POST /v1/reconcile", "POST /v1/notifications", contract.CallbackPattern, dispatcher.TimerPattern},
	sweeperName:    {sweeper.Pattern},
}

// routeLabel is the label for routes. Its values are the routes of all services. Before a service gets its first
// request, it has series only for its routes in [routes].
var routeLabel = metrics.Label{
	Name:   "route",
	Values: slices.Concat(routes[compactorName], routes[dispatcherName], routes[sweeperName], []string{"GET /healthz", "GET /readyz", noRoute}),
}

var (
	resultLabel    = metrics.Label{Name: "result", Values: []string{resultOK, resultError}}
	sweepKindLabel = metrics.Label{Name: "kind", Values: []string{kindDue, kindFull}}
	queueKindLabel = metrics.Label{Name: "kind", Values: []string{"dispatch", "timer"}}
	operationLabel = metrics.Label{
		Name: "op", Values: []string{"create", "replace", "put", "get", "head", "list", "delete"},
		Begin: []string{"create", "get", "list", "delete"},
	}
)

// Buckets of histograms, in seconds.
var (
	// requestBuckets reach up to requestTimeout.
	requestBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	// callBuckets suit the durations of calls to a store or a queue, whether local or in a cloud.
	callBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	foldBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	waitBuckets = []float64{.001, .01, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
)

// The metrics of all services.
var (
	httpRequests = &metrics.Metric{
		Name: "servo_http_requests_total", Type: metrics.Counter,
		Help: "Requests answered, by route and status.",
		Act:  "5xx repeatedly: read the log of the service with that route",
		Labels: []metrics.Label{routeLabel, {
			Name: "status", Values: []string{"200", "201", "202", "204", "400", "401", "403", "404", "405", "409", "413", "415", "422", "429", "500", "502", "503", "504"},
			Begin: []string{"200", "500", "503"},
		}},
	}
	httpDuration = &metrics.Metric{
		Name: "servo_http_request_duration_seconds", Type: metrics.Histogram,
		Help:    "Time to answer a request, by route. A request to fold waits for the publish.",
		Act:     "compare with publish and store durations to find the slow part",
		Labels:  []metrics.Label{routeLabel},
		Buckets: requestBuckets,
	}
	refusedCallers = &metrics.Metric{
		Name: "servo_refused_callers_total", Type: metrics.Counter,
		Help:   "Requests refused because of their caller, by reason.",
		Act:    "more than a few: compare --callers with the accounts in the log",
		Labels: []metrics.Label{{Name: "reason", Values: []string{reasonUnknown, reasonNotAllowed, reasonUnavailable}}},
	}
	storeRequests = &metrics.Metric{
		Name: "servo_store_requests_total", Type: metrics.Counter,
		Help: "Requests to the object store, by operation, kind of object and result.",
		Act:  "result=error: check the store and the service's rights",
		Labels: []metrics.Label{
			operationLabel,
			{
				Name: "kind", Values: []string{"ledger", "manifests", "state", "hints", "boundary", "pins", "wakeups", "archive", "plans", "assets", "logs"},
				Begin: []string{"manifests"},
			},
			{Name: "result", Values: []string{resultOK, "not_found", "exists", "mismatch", resultError}, Begin: []string{resultOK}},
		},
	}
	storeDuration = &metrics.Metric{
		Name: "servo_store_request_duration_seconds", Type: metrics.Histogram,
		Help:    "Time of requests to the object store, by operation; for a listing, the time until its first object.",
		Act:     "above the store's usual latency: check the store; it slows everything else down",
		Labels:  []metrics.Label{operationLabel},
		Buckets: callBuckets,
	}
	domainsOpen = &metrics.Metric{
		Name: "servo_domains_open", Type: metrics.Gauge,
		Help:     "Open domains.",
		Act:      "near 10,000: run more instances",
		Services: []string{compactorName, dispatcherName},
	}
	domainsBytes = &metrics.Metric{
		Name: "servo_domains_bytes", Type: metrics.Gauge,
		Help:     "Approximate memory of the open domains.",
		Act:      "always at --cache-bytes: domains are closed and reopened; raise --cache-bytes",
		Services: []string{compactorName, dispatcherName},
	}
	handovers = &metrics.Metric{
		Name: "servo_handovers_total", Type: metrics.Counter,
		Help:     "Calls that hand revisions or entries over to another service, by result.",
		Act:      "result=error: the other service cannot be reached; sweeps find the work, up to eleven minutes late",
		Labels:   []metrics.Label{resultLabel},
		Services: []string{compactorName, dispatcherName},
	}
)

// The metrics of the compactor.
var (
	publishes = &metrics.Metric{
		Name: "servo_publishes_total", Type: metrics.Counter,
		Help:     "Manifest revisions published.",
		Act:      "–",
		Services: []string{compactorName},
	}
	publishedRows = &metrics.Metric{
		Name: "servo_published_rows_total", Type: metrics.Counter,
		Help:     "Rows that published revisions changed.",
		Act:      "–",
		Services: []string{compactorName},
	}
	publishConflicts = &metrics.Metric{
		Name: "servo_publish_conflicts_total", Type: metrics.Counter,
		Help:     "Attempts to publish a revision that another writer had already published.",
		Act:      "half of all attempts to publish, or more: run fewer compactors",
		Services: []string{compactorName},
	}
	publishDuration = &metrics.Metric{
		Name: "servo_publish_duration_seconds", Type: metrics.Histogram,
		Help:     "Time to write the changed rows and to create the manifest, by result.",
		Act:      "compare with the store's create operations",
		Labels:   []metrics.Label{{Name: "result", Values: []string{resultOK, resultConflict, resultError}}},
		Buckets:  callBuckets,
		Services: []string{compactorName},
	}
	foldDuration = &metrics.Metric{
		Name: "servo_fold_duration_seconds", Type: metrics.Histogram,
		Help:     "Time to apply the events of one publish to the state, including reads of closed runs that the events name.",
		Act:      "above 1 s: batches are large, or events name runs in history",
		Buckets:  foldBuckets,
		Services: []string{compactorName},
	}
	compactionFailures = &metrics.Metric{
		Name: "servo_compaction_failures_total", Type: metrics.Counter,
		Help:     "Failed attempts to fold entries or to publish a revision; they are retried.",
		Act:      "repeatedly: read the compactor's log; nothing is lost meanwhile",
		Services: []string{compactorName},
	}
	oldestUnfolded = &metrics.Metric{
		Name: "servo_oldest_unfolded_entry_age_seconds", Type: metrics.Gauge, Sampled: true,
		Help:     "Age of the oldest ledger entry that a compactor knows and that no revision contains; 0 if there is none.",
		Act:      "above 5 minutes: folding fails, or the entry cannot be read; see the compactor's log",
		Services: []string{compactorName},
	}
	unreadableEntries = &metrics.Metric{
		Name: "servo_unreadable_entries", Type: metrics.Gauge, Sampled: true,
		Help:     "Ledger entries that cannot be folded: the entry, or a plan that it names, cannot be read.",
		Act:      "above 0 for 5 minutes: timers of their domains wait; see the compactor's log and `servo admin skip`",
		Services: []string{compactorName},
	}
	listingLag = &metrics.Metric{
		Name: "servo_listing_lag_seconds", Type: metrics.Gauge, Sampled: true,
		Help:     "Longest time for which a domain with live work has waited for a complete listing of its ledger; 0 if none waits.",
		Act:      "up to 11 minutes is normal; above 20: sweeps do not reach the compactor, or entries cannot be read",
		Services: []string{compactorName},
	}
)

// The metrics of the dispatcher.
var (
	refusedCallbacks = &metrics.Metric{
		Name: "servo_refused_callbacks_total", Type: metrics.Counter,
		Help:     "Callbacks refused because their signature is wrong or has expired.",
		Act:      "more than a few: a worker is outdated, a key was removed too early, or reports are forged",
		Services: []string{dispatcherName},
	}
	queueTasks = &metrics.Metric{
		Name: "servo_queue_tasks_total", Type: metrics.Counter,
		Help:     "Calls that create a queue task, by kind and result.",
		Act:      "result=error: check that the queue exists and that the dispatcher may use it",
		Labels:   []metrics.Label{queueKindLabel, {Name: "result", Values: []string{"created", "exists", "invalid", resultError}}},
		Services: []string{dispatcherName},
	}
	queueDuration = &metrics.Metric{
		Name: "servo_queue_request_duration_seconds", Type: metrics.Histogram,
		Help:     "Time to create a queue task, by kind.",
		Act:      "slower than the queue's usual latency: dispatches wait",
		Labels:   []metrics.Label{queueKindLabel},
		Buckets:  callBuckets,
		Services: []string{dispatcherName},
	}
	dispatchesWaiting = &metrics.Metric{
		Name: "servo_dispatches_waiting", Type: metrics.Gauge,
		Help:     "Tasks that wait for their tenant's turn in the fair queue.",
		Act:      "growing: raise --dispatch-rate, if the queue accepts more",
		Services: []string{dispatcherName},
	}
	dispatchWait = &metrics.Metric{
		Name: "servo_dispatch_wait_seconds", Type: metrics.Histogram,
		Help:     "Time that tasks waited for their tenant's turn in the fair queue.",
		Act:      "seconds: tenants compete; see --tenant-weights and --dispatch-rate",
		Buckets:  waitBuckets,
		Services: []string{dispatcherName},
	}
)

// The metrics of the sweeper.
var (
	sweeps = &metrics.Metric{
		Name: "servo_sweeps_total", Type: metrics.Counter,
		Help:     "Sweeps, by kind (due or full) and result.",
		Act:      "no success of kind due for 15 minutes, or of kind full for a day: read the sweeper's log",
		Labels:   []metrics.Label{sweepKindLabel, resultLabel},
		Services: []string{sweeperName},
	}
	sweptDomains = &metrics.Metric{
		Name: "servo_swept_domains_total", Type: metrics.Counter,
		Help:     "Domains swept, by kind of sweep.",
		Act:      "–",
		Labels:   []metrics.Label{sweepKindLabel},
		Services: []string{sweeperName},
	}
	lateSweeps = &metrics.Metric{
		Name: "servo_late_sweeps_total", Type: metrics.Counter,
		Help:     "Sweeps that found a wakeup at least 10 minutes late.",
		Act:      "more than a few: check that sweeps start every minute and succeed",
		Services: []string{sweeperName},
	}
	sweptGroups = &metrics.Metric{
		Name: "servo_swept_groups_total", Type: metrics.Counter,
		Help:     "Groups of events that sweeps found because no notification had announced them.",
		Act:      "more than a few: notifications are lost; check the subscription",
		Services: []string{sweeperName},
	}
)

// catalog lists the metrics of all services, in the order of docs/reference/metrics.md.
var catalog = []*metrics.Metric{
	httpRequests, httpDuration, refusedCallers, storeRequests, storeDuration, domainsOpen, domainsBytes, handovers,
	publishes, publishedRows, publishConflicts, publishDuration, foldDuration, compactionFailures, oldestUnfolded, unreadableEntries, listingLag,
	refusedCallbacks, queueTasks, queueDuration, dispatchesWaiting, dispatchWait,
	sweeps, sweptDomains, lateSweeps, sweptGroups,
}

// catalogOf lists the metrics of a service.
func catalogOf(service string) []*metrics.Metric {
	var of []*metrics.Metric
	for _, m := range catalog {
		if m.Of(service) {
			of = append(of, m)
		}
	}
	return of
}

// begin creates the series of a service with the value 0. A reader of metrics sees an increase only if the series
// existed before the increase.
func begin(r metrics.Recorder, service string) {
	for _, m := range catalogOf(service) {
		beginAt(r, service, m, nil)
	}
}

// beginAt creates one series of a metric for each combination of its labels' values. The parameter chosen contains the
// values of the first labels, which are fixed.
func beginAt(r metrics.Recorder, service string, m *metrics.Metric, chosen []string) {
	if len(chosen) == len(m.Labels) {
		r.Begin(m, chosen...)
		return
	}
	for _, value := range beginsWith(service, m.Labels[len(chosen)]) {
		beginAt(r, service, m, append(slices.Clip(chosen), value))
	}
}

// beginsWith returns the values of a label for which a service creates series at its start.
func beginsWith(service string, l metrics.Label) []string {
	switch {
	case l.Name == routeLabel.Name:
		return routes[service]
	case l.Begin != nil:
		return l.Begin
	}
	return l.Values
}
