package api

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// All pages of a listing show the revision of its first page, so changes between two pages neither skip nor repeat a
// row. The server keeps the snapshots of the newest listings in memory, where they share most rows. If the server
// does not have a snapshot, for example after a restart, it reads the revision from the store. A page token is valid
// as long as the revision is kept, and for at most an hour after the listing began.
const (
	keptListings = 32
	// keptRead is how many of the kept snapshots may come from the store. It is smaller than keptListings, because
	// snapshots from the store share no rows.
	keptRead  = 4
	tokenLife = time.Hour
	macBytes  = 16
)

// pages creates and verifies page tokens, and keeps the snapshots of listings.
type pages struct {
	key []byte
	// readRevision reads a revision from the store.
	readRevision func(ctx context.Context, revision int64) (*snapshot.Snapshot, error)

	// loading holds the revisions that are being read from the store. It is shared because all clients request the same
	// revision after a restart.
	loading shared[int64, *snapshot.Snapshot]

	mu   sync.Mutex
	kept []keptListing // in the order of their last use
}

// keptListing is the snapshot of a listing that has more pages.
type keptListing struct {
	snap *snapshot.Snapshot
	at   time.Time // when a page of the listing was last read
	read bool      // the snapshot was read from the store
}

// newPages returns pages that sign their tokens with a key. If key is nil, they use a random key of this process.
func newPages(key []byte, readRevision func(ctx context.Context, revision int64) (*snapshot.Snapshot, error)) *pages {
	own := make([]byte, sha256.Size)
	if _, _ = rand.Read(own); len(key) > 0 { // rand.Read never fails
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte("servo page tokens"))
		own = mac.Sum(nil)
	}
	return &pages{key: own, readRevision: readRevision}
}

// cursor says where a page begins.
type cursor struct {
	Call     string `json:"c"` // the message type of the request
	Filter   []byte `json:"f"` // the result of filterOf for the request
	Revision int64  `json:"r"`
	Nonce    string `json:"n,omitempty"` // the nonce of the revision's manifest
	After    string `json:"a"`           // the key of the last row of the previous page
	// At is the time of the first page, on which the expected partitions of assets depend.
	At int64 `json:"t"`
}

// pageRequest is a request for a page of a listing.
type pageRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// page is a page of a listing that a call reads.
type page struct {
	snap  *snapshot.Snapshot
	after string // the page begins after this key; empty: with the first row
	size  int
	now   time.Time // when the first page was read
	read  time.Time // when this page is read
	// loaded means that the snapshot was read from the store.
	loaded bool

	pages  *pages
	cursor cursor
}

// open returns the page that a request asks for. The function current returns the newest snapshot.
func (p *pages) open(
	ctx context.Context, r pageRequest, fallback int, now time.Time, current func(context.Context) (*snapshot.Snapshot, error),
) (*page, error) {
	opened := &page{size: int(r.GetPageSize()), pages: p, now: now, read: now}
	if opened.size == 0 {
		opened.size = fallback
	}
	opened.cursor = cursor{Call: string(r.ProtoReflect().Descriptor().Name()), Filter: filterOf(r)}
	if r.GetPageToken() == "" {
		snap, err := current(ctx)
		if err != nil {
			return nil, err
		}
		opened.snap, opened.cursor.Revision, opened.cursor.Nonce, opened.cursor.At = snap, snap.Revision, snap.Nonce, now.UnixMicro()
		return opened, nil
	}
	read, err := p.read(r.GetPageToken())
	switch {
	case err != nil:
		return nil, err
	case read.Call != opened.cursor.Call || string(read.Filter) != string(opened.cursor.Filter):
		return nil, invalid("page_token", "belongs to a listing with other parameters: send the same parameters for each page, or start a new listing")
	case now.Sub(time.UnixMicro(read.At)) > tokenLife:
		return nil, expired("the listing began more than %s ago", tokenLife)
	}
	snap, loaded, err := p.snapshot(ctx, &read, now, current)
	if err != nil {
		return nil, err
	}
	opened.loaded = loaded
	opened.cursor, opened.snap, opened.after, opened.now = read, snap, read.After, time.UnixMicro(read.At)
	return opened, nil
}

func expired(format string, args ...any) error {
	return refuse(pageExpired, "page_token has expired: %s; start the listing again", fmt.Sprintf(format, args...))
}

// filterOf hashes the fields of a request that select the rows of its listing.
func filterOf(r pageRequest) []byte {
	without := proto.Clone(r).ProtoReflect()
	for _, name := range []string{"page_size", "page_token", "min_revision", "tenant_id", "workspace_id"} {
		if field := without.Descriptor().Fields().ByTextName(name); field != nil {
			without.Clear(field)
		}
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(without.Interface())
	if err != nil {
		panic(fmt.Sprintf("api: encode a request: %v", err)) // cannot happen: the request was decoded
	}
	sum := sha256.Sum256(raw)
	return sum[:macBytes]
}

// snapshot returns the snapshot of a listing, and whether it comes from the store.
func (p *pages) snapshot(
	ctx context.Context, c *cursor, now time.Time, current func(context.Context) (*snapshot.Snapshot, error),
) (snap *snapshot.Snapshot, loaded bool, err error) {
	if kept, found := p.find(c, now); found {
		return kept.snap, kept.read, nil
	}
	snap, err = current(ctx)
	if err != nil || snap.Revision == c.Revision && snap.Nonce == c.Nonce {
		return snap, false, err
	}
	if p.readRevision == nil {
		return nil, false, expired("the server no longer holds revision %d", c.Revision)
	}
	snap, err = p.revision(ctx, c.Revision, now)
	switch {
	case gone(err) || errors.Is(err, engine.ErrNotFound):
		return nil, false, expired("revision %d is no longer kept", c.Revision)
	case err != nil:
		return nil, false, err
	case snap.Nonce != c.Nonce:
		return nil, false, expired("another revision has the number %d now", c.Revision)
	}
	return snap, true, nil
}

// revision returns the snapshot of an earlier revision. If several clients request the same revision at once, the
// server reads it from the store once.
func (p *pages) revision(ctx context.Context, revision int64, now time.Time) (*snapshot.Snapshot, error) {
	return p.loading.do(ctx, revision, func(ctx context.Context) (*snapshot.Snapshot, error) {
		if kept, found := p.numbered(revision, now); found {
			return kept.snap, nil
		}
		snap, err := p.readRevision(ctx, revision)
		if err == nil {
			p.keep(snap, now, true)
		}
		return snap, err
	})
}

// numbered returns a kept snapshot by its number, if it was read from the store. It ignores all other snapshots: a
// rebuild of the state may have given their numbers to other revisions.
func (p *pages) numbered(revision int64, now time.Time) (keptListing, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(now)
	at := slices.IndexFunc(p.kept, func(kept keptListing) bool { return kept.read && kept.snap.Revision == revision })
	if at < 0 {
		return keptListing{}, false
	}
	return p.kept[at], true
}

// find returns the kept listing of a cursor.
func (p *pages) find(c *cursor, now time.Time) (keptListing, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(now)
	for i, kept := range p.kept {
		if kept.snap.Revision == c.Revision && kept.snap.Nonce == c.Nonce {
			kept.at = now
			p.kept = append(slices.Delete(p.kept, i, i+1), kept)
			return kept, true
		}
	}
	return keptListing{}, false
}

// forget drops the snapshots of listings that nobody has continued within the lifetime of a token. The
// caller holds the lock.
func (p *pages) forget(now time.Time) {
	p.kept = slices.DeleteFunc(p.kept, func(kept keptListing) bool { return now.Sub(kept.at) > tokenLife })
}

// keep keeps the snapshot of a listing that has more pages.
func (p *pages) keep(snap *snapshot.Snapshot, now time.Time, read bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(now)
	p.kept = slices.DeleteFunc(p.kept, func(kept keptListing) bool { return kept.snap.Revision == snap.Revision })
	p.kept = append(p.kept, keptListing{snap, now, read})
	if len(p.kept) > keptListings {
		p.kept = slices.Delete(p.kept, 0, 1)
	}
	left := keptRead
	for i, kept := range slices.Backward(p.kept) {
		if kept.read {
			if left--; left < 0 {
				p.kept = slices.Delete(p.kept, i, i+1)
			}
		}
	}
}

// next returns the token of the next page. The parameter last is the key of the last row of this page.
func (p *page) next(last string) string {
	p.pages.keep(p.snap, p.read, p.loaded)
	c := p.cursor
	c.After = last
	raw, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("api: encode a page token: %v", err)) // cannot happen: it has only strings and numbers
	}
	return base64.RawURLEncoding.EncodeToString(append(p.pages.mac(raw), raw...))
}

func (p *pages) mac(raw []byte) []byte {
	h := hmac.New(sha256.New, p.key)
	h.Write(raw)
	return h.Sum(nil)[:macBytes]
}

// read returns the cursor of a token.
func (p *pages) read(token string) (c cursor, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) <= macBytes || json.Unmarshal(raw[macBytes:], &c) != nil {
		return c, invalid("page_token", "is not a page token: pass next_page_token of the previous page")
	}
	if !hmac.Equal(raw[:macBytes], p.mac(raw[macBytes:])) {
		return c, expired("a process with another key created the token")
	}
	return c, nil
}

// failed returns the error of a page that cannot be read. If files of the listing's revision were deleted while its
// pages were read, the error says that the listing has expired.
func (p *page) failed(err error) error {
	if p.after != "" && gone(err) {
		return expired("the files of revision %d have been deleted", p.cursor.Revision)
	}
	return err
}
