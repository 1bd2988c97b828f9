package project

import (
	"slices"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// quarantine holds the settings of an asset's `quarantine` while the project is loaded.
type quarantine struct {
	expires  time.Duration
	onExpiry string
	at       place
}

const (
	defaultExpiry = 7 * 24 * time.Hour
	onReject      = "reject"
	onApprove     = "approve"
)

// quarantineFields are the fields of `quarantine`.
var quarantineFields = table[quarantine]{
	other("expires", typed("age", shape{Description: "How long an output waits for a decision: 1s to 36500d.", Default: "7d"}),
		func(f yamlFile, n *yaml.Node, q *quarantine) { f.age(n, "expires", &q.expires) }),
	choice("on_expiry", shape{Description: "The decision about an output if nobody decides in time.", Default: onReject},
		[]string{onReject, onApprove}, func(q *quarantine) *string { return &q.onExpiry }),
}

// quarantine reads the quarantine of an asset.
func (f yamlFile) quarantine(n *yaml.Node, a *declared) {
	q := &quarantine{expires: defaultExpiry, onExpiry: onReject, at: f.place(n)}
	f.mapping(n, "quarantine", quarantineFields.fields(f, q))
	a.quarantine = q
}

// linkQuarantine sets the quarantine in the asset's work, if the asset has a check that can block an output.
func (l *loader) linkQuarantine(a *declared) {
	q := a.quarantine
	switch {
	case q == nil:
	case !a.Work.HasFiles():
		l.report(q.at, "remove quarantine, or output: none", "the asset has no output that could be kept")
	case slices.ContainsFunc(a.Work.Checks, func(c quality.Check) bool { return c.PhaseOf() == quality.Post && c.SeverityOf() == quality.Critical }):
		a.Work.Quarantine = &event.Quarantine{ExpiresSec: int64(q.expires / time.Second), Approve: q.onExpiry == onApprove}
	}
}
