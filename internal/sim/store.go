package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// Errors of a store that leave it unknown whether a write took effect.
var (
	errUnavailable = errors.New("503 service unavailable")
	errLost        = errors.New("the answer was lost")
	errTooFast     = errors.New("429 too many mutations of one object")
	errFull        = errors.New("507 the store is full")
)

// mutationEvery is the minimum time between writes of the same object.
const mutationEvery = time.Second

// origin is the process that first tried to create a key, and the time at which it did.
type origin struct {
	by *process
	at time.Time
}

// store is the object store as seen by a process.
type store struct{ p *process }

var _ blob.Store = store{}

// op executes an operation of the store atomically, after a delay. It does so even if the caller dies or gives up in
// the meantime.
func op[T any](ctx context.Context, s store, verb, key string, writes bool, effect func() (T, error)) (T, error) {
	w := s.p.machine.w
	var value T
	var err error
	k := &call{proc: s.p, label: verb + " " + key}
	k.begin = func() {
		f := w.faults.storage(s.p, writes)
		if _, before := w.firstCreate[key]; verb == "create" && !before {
			w.firstCreate[key] = origin{s.p, w.now()}
		}
		latency := func() time.Duration { return time.Duration(w.slowed(s.p, verb)) * w.faults.latency() }
		reply := func() { w.callAfter(latency(), s.p, func() { close(k.done) }) }
		happen := func() {
			if writes {
				if err = w.checkWrite(verb, key); err != nil {
					w.note("%s %s %s: %v", s.p.id, verb, key, err)
					return
				}
			}
			value, err = effect()
			w.note("%s %s %s: %s", s.p.id, verb, key, outcome(err))
			if err == nil && writes {
				w.wrote(verb, key)
			}
		}
		w.callAfter(latency()+f.delay, nil, func() {
			switch {
			case f.killBefore:
				s.p.kill("before " + verb + " " + key)
				return
			case f.before:
				err = fmt.Errorf("%s %s: %w", verb, key, errUnavailable)
				w.note("%s %s %s: %v", s.p.id, verb, key, errUnavailable)
				if f.later > 0 { // the request takes effect later, although the caller receives an error
					w.callAfter(f.later, nil, func() {
						kept := err
						happen()
						err = kept
					})
				}
				reply()
				return
			}
			happen()
			switch {
			case f.killAfter:
				s.p.kill("after " + verb + " " + key)
				return
			case f.after:
				err = fmt.Errorf("%s %s: %w", verb, key, errLost)
			}
			reply()
		})
	}
	if parked := w.park(ctx, k); parked != nil {
		var none T
		return none, fmt.Errorf("%s %s: %w", verb, key, parked)
	}
	return value, err
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// checkWrite rejects writes that real stores reject: frequent writes of one object, and writes to a
// full store.
func (w *world) checkWrite(verb, key string) error {
	if verb != "delete" && w.faults.full() {
		w.fault("full")
		return fmt.Errorf("%s %s: %w", verb, key, errFull)
	}
	if verb == "create" {
		return nil // not checked: a create never changes an existing object
	}
	if last, ok := w.mutated[key]; ok && w.now().Sub(last) < mutationEvery {
		w.fault("rate limit")
		return fmt.Errorf("%s %s: %w", verb, key, errTooFast)
	}
	w.mutated[key] = w.now()
	return nil
}

var _ blob.Clock = store{}

// Now implements [blob.Clock].
func (s store) Now(ctx context.Context) (time.Time, error) {
	return op(ctx, s, "now", "", false, func() (time.Time, error) { return s.p.machine.w.now(), nil })
}

func (s store) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	object, err := op(ctx, s, "create", key, true, func() (blob.Object, error) {
		return s.p.machine.w.blobs.Create(context.Background(), key, data)
	})
	if err != nil && strings.HasPrefix(key, "ledger/") {
		s.p.machine.w.failed.Store(blob.CRC32C(data), true)
	}
	return object, err
}

func (s store) CreateFrom(ctx context.Context, key string, r io.Reader) (blob.Object, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return blob.Object{}, err
	}
	return s.Create(ctx, key, data)
}

func (s store) Replace(ctx context.Context, key string, data []byte, version int64) (blob.Object, error) {
	return op(ctx, s, "replace", key, true, func() (blob.Object, error) {
		return s.p.machine.w.blobs.Replace(context.Background(), key, data, version)
	})
}

func (s store) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return op(ctx, s, "put", key, true, func() (blob.Object, error) {
		return s.p.machine.w.blobs.Put(context.Background(), key, data)
	})
}

func (s store) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	type got struct {
		data   []byte
		object blob.Object
	}
	g, err := op(ctx, s, "get", key, false, func() (got, error) {
		if err := s.p.machine.w.unreadable(key); err != nil {
			return got{}, err
		}
		data, object, err := s.p.machine.w.blobs.Get(context.WithoutCancel(ctx), key)
		return got{data, object}, err
	})
	return g.data, g.object, err
}

func (s store) Open(ctx context.Context, key string) (io.ReadCloser, blob.Object, error) {
	data, object, err := s.Get(ctx, key)
	if err != nil {
		return nil, object, err
	}
	return io.NopCloser(strings.NewReader(string(data))), object, nil
}

func (s store) Head(ctx context.Context, key string) (blob.Object, error) {
	return op(ctx, s, "head", key, false, func() (blob.Object, error) {
		return s.p.machine.w.blobs.Head(context.Background(), key)
	})
}

// List is strongly consistent per page: a change between two pages is visible if its key sorts after the last key of
// the first page.
func (s store) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		after := opts.StartAfter
		for {
			page, err := op(ctx, s, "list", opts.Prefix+" after "+after, false, func() ([]blob.Object, error) {
				return s.p.machine.w.page(opts.Prefix, after)
			})
			if err != nil {
				s.noteListing(opts.Prefix, err)
				yield(blob.Object{}, err)
				return
			}
			for _, o := range page {
				if !yield(o, nil) {
					return
				}
				after = o.Key
			}
			if len(page) < s.p.machine.w.cfg.PageSize {
				s.noteListing(opts.Prefix, nil)
				return
			}
		}
	}
}

// noteListing records that a listing has completed or failed.
func (s store) noteListing(prefix string, err error) {
	if m := s.p.machine; m.kind == "compactor" {
		m.w.listings.ended(prefix, err)
	}
}

func (w *world) page(prefix, after string) ([]blob.Object, error) {
	var page []blob.Object
	for o, err := range w.blobs.List(context.Background(), blob.ListOptions{Prefix: prefix, StartAfter: after}) {
		if err != nil {
			return nil, err
		}
		if page = append(page, o); len(page) == w.cfg.PageSize {
			break
		}
	}
	return page, nil
}

func (s store) Delete(ctx context.Context, key string) error {
	_, err := op(ctx, s, "delete", key, true, func() (struct{}, error) {
		w := s.p.machine.w
		if _, err := w.blobs.Head(context.Background(), key); err == nil {
			w.oracle.deleting(s.p, key)
		}
		return struct{}{}, w.blobs.Delete(context.Background(), key)
	})
	return err
}
