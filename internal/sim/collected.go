package sim

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// retention returns how long a world keeps revisions.
func (c World) retention() manifest.Policy {
	return manifest.Policy{All: c.keep(), Hourly: 10 * c.keep(), Daily: 20 * c.keep(), Orphans: c.keep() / 2}
}

// keepsLongEnough reports whether a world keeps revisions for as long as [manifest.Policy] demands. In other worlds, a
// collector whose clock is ahead may delete a revision while a reader still trusts the previous one. If a delayed
// writer then creates the deleted revision again, the reader uses the recreated revision until it reads the boundary.
func (c World) keepsLongEnough() bool {
	const trusted = 10 * time.Second
	return c.keep() > trusted+2*time.Duration(c.Faults.MaxSkew)*time.Second
}

// aheadClock is a clock that is ahead by some time.
type aheadClock struct {
	clock.Clock

	by time.Duration
}

func (l *aheadClock) Now() time.Time { return l.Clock.Now().Add(l.by) }

// aheadStore is a store that reports the time of a clock that is ahead. A collector measures ages by the store's clock.
type aheadStore struct {
	blob.Store

	clock *aheadClock
}

func (s aheadStore) Now(ctx context.Context) (time.Time, error) { return s.clock.Now(), ctx.Err() }

// checkStateCollection checks, on a copy of the store, that unreferenced objects are deleted in the end. It publishes
// two more revisions, after so much time that no earlier revision needs to be kept. After that, only the newest
// revisions and their files may be left.
func (o *oracle) checkStateCollection(f *followed) {
	if f.manifest == nil {
		return
	}
	const long = 60 * 24 * time.Hour
	blobs, now := o.w.blobs.Copy(), &aheadClock{Clock: o.w.clock}
	source := ids.NewSource(now.Now, &entropy{rng: random(o.w.cfg.Seed, "collect", 0)})
	manifests := manifest.New(manifest.Config{Domain: f.domain, Store: aheadStore{blobs, now}, IDs: source, Clock: now})
	policy := o.w.cfg.retention()
	collector := manifest.NewCollector(manifests, policy)
	m := f.manifest
	for range 2 {
		now.by += long
		m = m.Successor("oracle")
		m.OrphanFloor = ids.AtTime(now.Now().Add(-policy.Orphans))
		if err := publishAndCollect(manifests, collector, m); err != nil {
			o.violation("collection", "of %s: %v", f.domain, err)
			return
		}
	}
	o.checkOnlyNewest(f, blobs, m)
}

func publishAndCollect(manifests *manifest.Store, collector *manifest.Collector, m *manifest.Manifest) error {
	ctx := context.Background()
	if err := manifests.Publish(ctx, m); err != nil {
		return err
	}
	for more := true; more; {
		revisions, err := collector.Retain(ctx)
		if err != nil {
			return err
		}
		files, err := collector.Collect(ctx)
		if err != nil {
			return err
		}
		more = revisions || files
	}
	return nil
}

// checkOnlyNewest checks that only objects of the newest revision are left.
func (o *oracle) checkOnlyNewest(f *followed, blobs *memblob.Store, m *manifest.Manifest) {
	needed := map[string]bool{manifest.Key(f.domain, m.Revision): true, manifest.Key(f.domain, m.Revision-1): true}
	for _, file := range o.filesOf(f, m) {
		needed[file.Key] = true
	}
	for _, prefix := range []string{manifest.Prefix(f.domain), manifest.PinPrefix(f.domain), manifest.StatePrefix(f.domain)} {
		for object, err := range blobs.List(context.Background(), blob.ListOptions{Prefix: prefix}) {
			if err != nil || !needed[object.Key] {
				o.violation("collection", "%s is left, but nothing needs it (%v)", object.Key, err)
				return
			}
		}
	}
}
