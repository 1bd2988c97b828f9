package sim

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// wakeupSlack is the maximum time from the instant at which a domain begins to need a sweep to its wakeup, if all
// clocks agree: ten minutes, plus a minute of rounding at each end.
const wakeupSlack = 12 * time.Minute

// checkWakeup checks the wakeup of a domain: if the domain will need a sweep, the wakeup must be early enough. The
// object of the wakeup must exist.
func (o *oracle) checkWakeup(f *followed, m *manifest.Manifest) {
	now := event.At(o.w.now())
	needed, ok := control.Attention(f.state, now)
	latest := max(needed, now, m.Wakeup.Through).Add(wakeupSlack + time.Duration(o.w.cfg.Faults.MaxSkew)*time.Second)
	switch {
	case m.Wakeup.At == 0 && ok:
		o.violation("INV-5 no lost work", "revision %d of %s has no wakeup, but may need a sweep from %s on", m.Revision, f.domain, needed)
	case m.Wakeup.At > latest && ok:
		o.violation("INV-5 no lost work", "revision %d of %s may need a sweep from %s on, but its wakeup is not due before %s", m.Revision, f.domain, needed, m.Wakeup.At)
	}
	if m.Wakeup.At == 0 {
		return
	}
	marker := wakeup.Wakeup{At: m.Wakeup.At, Domain: f.domain}
	if _, err := o.w.blobs.Head(context.Background(), marker.Key()); err != nil {
		o.violation("INV-5 no lost work", "revision %d of %s names wakeup %s, which does not exist (%v)", m.Revision, f.domain, marker.Key(), err)
	}
}

// deletingWakeup checks that the newest revision does not need the wakeup.
func (o *oracle) deletingWakeup(p *process, key string) {
	marker, err := wakeup.ParseKey(key)
	if err != nil {
		o.violation("INV-5 no lost work", "%v", err)
		return
	}
	f := o.domains[marker.Domain]
	if f != nil && f.manifest != nil && !f.broken && f.manifest.Wakeup.At == marker.At {
		o.violation("INV-5 no lost work", "%s deletes wakeup %s, which revision %d names", p.id, key, f.manifest.Revision)
	}
}
