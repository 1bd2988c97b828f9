package embedded

import (
	"context"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/publisher"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Publishing returns the published places to keep up to date, and the assets to publish there, according to the state
// in a snapshot.
type Publishing func(ctx context.Context, w *Workspace, snap *snapshot.Snapshot) ([]publisher.Place, []publisher.Asset, error)

const (
	// publishEvery is the minimum time between two passes. After a long pass, the minimum is publishShare times the
	// duration of that pass.
	publishEvery = 100 * time.Millisecond
	publishShare = 3
	// publishAgain is the time from a failed pass to the next one.
	publishAgain = 10 * time.Second
	// publishWithin bounds the duration of the last pass, which a closing stack runs.
	publishWithin = 30 * time.Second
)

// visible reports whether a new revision may have changed the outputs that readers of published places find.
func visible(published compactor.Published) bool {
	changed := published.Changed
	return len(state.List[state.Partition](changed))+len(state.List[state.Mark](changed))+
		len(state.List[state.Deployment](changed))+len(state.List[state.KeyBlock](changed)) > 0
}

// publishAll runs passes of the publisher while the stack serves. The first pass finishes the work that an earlier
// process left unfinished.
func (s *Stack) publishAll(ctx context.Context) error {
	if s.opts.Publish == nil {
		return nil
	}
	s.publication.request()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.publication.due:
		}
		began := s.opts.Clock.Now()
		wait := publishAgain
		if s.publish(ctx) {
			wait = max(publishEvery, publishShare*s.opts.Clock.Now().Sub(began))
		} else {
			s.publication.request()
		}
		if s.opts.Clock.Sleep(ctx, wait) != nil {
			return nil //nolint:nilerr // the stack is closing
		}
	}
}

// publish runs one pass. It returns false if the pass must be repeated. A failed pass never makes a task fail.
func (s *Stack) publish(ctx context.Context) bool {
	s.publication.mu.Lock()
	defer s.publication.mu.Unlock()
	snap, _ := s.compactor.Latest().Get()
	if snap == nil || snap.Revision == 0 {
		return true
	}
	places, assets, err := s.opts.Publish(ctx, s.workspace, snap)
	if err == nil {
		p := publisher.Publisher{Dir: s.opts.Dir, Domain: s.opts.Domain.String(), Now: func() event.Time { return event.At(s.opts.Clock.Now()) }}
		err = p.Publish(ctx, snap, places, assets)
	}
	switch {
	case err == nil:
		s.publishError = ""
	case ctx.Err() == nil && err.Error() != s.publishError:
		s.publishError = err.Error()
		s.opts.Logger.WarnContext(ctx, "could not publish all outputs; the next pass tries again", slog.Any("error", err))
	}
	return err == nil
}

// publishRest is called when the stack closes. It runs a last pass if outputs may be unpublished. Otherwise it waits
// until a running pass has ended.
func (s *Stack) publishRest() {
	if s.opts.Publish == nil {
		return
	}
	select {
	case <-s.publication.due:
		ctx, cancel := context.WithTimeout(context.Background(), publishWithin)
		defer cancel()
		s.publish(ctx)
	default:
		s.publication.mu.Lock() // wait for a running pass
		s.publication.mu.Unlock()
	}
}
