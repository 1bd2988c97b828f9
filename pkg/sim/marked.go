package sim

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/due"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// markerSlack is how much later than something can get stuck a domain may be due, where
// clocks agree: a slot of ten minutes, and the minutes at its ends.
const markerSlack = 12 * time.Minute

// marked checks that a domain in which something can get stuck is due in time, and that
// the marker that says so is there.
func (o *oracle) marked(f *followed, m *manifest.Manifest) {
	now := event.At(o.w.now())
	needed, ok := control.Attention(f.state, now)
	latest := max(needed, now, m.Due.Through).Add(markerSlack + time.Duration(o.w.cfg.Faults.MaxSkew)*time.Second)
	switch {
	case m.Due.At == 0 && ok:
		o.violation("INV-5 no lost work", "revision %d of %s has no marker, and may call for attention from %s on", m.Revision, f.domain, needed)
	case m.Due.At > latest && ok:
		o.violation("INV-5 no lost work", "revision %d of %s may call for attention from %s on, and is not due before %s", m.Revision, f.domain, needed, m.Due.At)
	}
	if m.Due.At == 0 {
		return
	}
	marker := due.Marker{At: m.Due.At, Domain: f.domain}
	if _, err := o.w.blobs.Head(context.Background(), marker.Key()); err != nil {
		o.violation("INV-5 no lost work", "revision %d of %s is marked by %s, which is not there (%v)", m.Revision, f.domain, marker.Key(), err)
	}
}

// deletingMarker checks that the newest revision does without a marker that is about to
// be deleted.
func (o *oracle) deletingMarker(p *process, key string) {
	marker, err := due.ParseKey(key)
	if err != nil {
		o.violation("INV-5 no lost work", "%v", err)
		return
	}
	f := o.domains[marker.Domain]
	if f != nil && f.manifest != nil && !f.broken && f.manifest.Due.At == marker.At {
		o.violation("INV-5 no lost work", "%s deletes %s, by which revision %d is marked", p.id, key, f.manifest.Revision)
	}
}
