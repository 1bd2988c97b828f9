package service

import (
	"slices"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/sweeper"
)

// known is a metric with the label values that will occur: it has a series for each combination.
type known struct {
	metric string
	labels []label
}

// label is the name of a label, and its possible values.
type label struct {
	name   string
	values []string
}

// knownOf lists the metrics of each service.
var knownOf = map[string][]known{
	"servo-compactor": {
		{"servo_publishes_total", nil},
		{"servo_published_rows_total", nil},
		{"servo_publish_conflicts_total", nil},
		{"servo_compaction_failures_total", nil},
		{"servo_domains_bytes", nil},
		{"servo_domains_open", nil},
		{"servo_handovers_total", []label{{"result", []string{"ok", "error"}}}},
		routes("POST /v1/compact", "POST /v1/notifications"),
	},
	"servo-dispatcher": {
		{"servo_dispatches_waiting", nil},
		{"servo_refused_callbacks_total", nil},
		{"servo_domains_bytes", nil},
		{"servo_domains_open", nil},
		{"servo_handovers_total", []label{{"result", []string{"ok", "error"}}}},
		{"servo_queue_tasks_total", []label{{"kind", []string{"dispatch", "timer"}}, {"result", []string{"created", "exists", "invalid", "error"}}}},
		routes("POST /v1/reconcile", "POST /v1/notifications", contract.CallbackPattern, dispatcher.TimerPattern),
	},
	"servo-sweeper": {
		{"servo_sweeps_total", []label{{"kind", []string{"due", "full"}}, {"result", []string{"ok", "error"}}}},
		{"servo_swept_domains_total", []label{{"kind", []string{"due", "full"}}}},
		{"servo_swept_groups_total", nil},
		{"servo_late_sweeps_total", nil},
		routes(sweeper.Pattern),
	},
}

// everywhere lists the metrics of all services.
var everywhere = []known{
	{"servo_refused_callers_total", []label{{"reason", []string{reasonUnknown, reasonNotAllowed, reasonUnavailable}}}},
	{"servo_store_requests_total", []label{{"op", []string{"create", "get", "list", "delete"}}, {"kind", []string{"manifests"}}, {"result", []string{"ok"}}}},
}

func routes(patterns ...string) known {
	return known{"servo_http_requests_total", []label{{"route", patterns}, {"status", []string{"200", "500", "503"}}}}
}

// begin creates the series of a service with the value 0. Readers see increases only of series that
// existed before.
func (m *metrics) begin(service string) {
	for _, of := range [][]known{everywhere, knownOf[service]} {
		for _, k := range of {
			m.beginAt(k.metric, k.labels)
		}
	}
}

// beginAt creates the series of a metric for each combination of labels, after the chosen ones.
func (m *metrics) beginAt(metric string, labels []label, chosen ...string) {
	if len(labels) == 0 {
		m.Add(metric, 0, chosen...)
		return
	}
	for _, value := range labels[0].values {
		m.beginAt(metric, labels[1:], append(slices.Clip(chosen), labels[0].name, value)...)
	}
}
