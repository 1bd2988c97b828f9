// Package gc deletes unneeded outputs and logs: superseded versions of partitions, outputs that
// never became visible, files of losing executions, and old logs. This package is not a stable API.
//
// The pure function [Decide] selects the garbage from a listing and from rows of the state. The
// code around it lists part of the domain's outputs, then reads the newest published state,
// then deletes. Because of this order, a listed materialization that no live run writes belongs
// to an ended run.
//
// The package never deletes plans or other inputs of the fold: without them a rebuild would
// lose runs.
package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Config configures the collector of one domain.
type Config struct {
	*domain.Handle
	// Keep is the retention rule. Nil: the default for all assets and logs.
	Keep Rule
	// Published returns the materializations that readers of published places may find. They are kept. Nil: there are no
	// published places.
	Published func() (map[string]bool, error)
}

// Rule returns the retention rule of an asset, or of logs if asset is empty. If ok is false, nothing may be deleted.
type Rule func(asset string) (keep Keep, ok bool)

// Options limit one pass.
type Options struct {
	// DryRun reports what would be deleted, without deleting it.
	DryRun bool
	// Assets restricts the pass to these assets. Empty: all assets and the logs.
	Assets []ids.AssetKey
	// After is the key after which the pass starts: the field Next in the report of the previous pass.
	After string
	// MaxDeletes ends the pass after this many deleted objects. 0: no limit.
	MaxDeletes int

	// page and version replace maxPage and maxVersion in tests.
	page, version int
}

// Count counts the deleted objects of an asset for one reason.
type Count struct {
	Asset    string `json:"asset"` // empty for logs
	Reason   Reason `json:"reason"`
	Versions int    `json:"versions"`
	Files    int    `json:"files"`
	Bytes    int64  `json:"bytes"`
}

// Item is a version of a partition, or the logs of a run. A pass that is not a dry run would delete it, or some of its
// files.
type Item struct {
	Asset     string `json:"asset"`     // empty for logs
	Partition string `json:"partition"` // empty for an unpartitioned asset
	Reason    Reason `json:"reason"`
	// Version is the id of the materialization or, for logs, of the run.
	Version string `json:"version"`
	// StoredAt is when the newest of the files was stored.
	StoredAt event.Time `json:"stored_at"`
	Files    int        `json:"files"`
	Bytes    int64      `json:"bytes"`
}

// Report is the result of a pass.
type Report struct {
	DryRun bool    `json:"dry_run"`
	Counts []Count `json:"collected"`
	// Items lists what a dry run would delete.
	Items []Item `json:"items,omitempty"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
	// Listed is the number of listed objects.
	Listed int `json:"listed"`
	// Next is the value of Options.After for the next pass. Empty: the pass reached the end.
	Next string `json:"next,omitempty"`
}

const (
	// maxPage is the approximate number of objects in a page. A pass lists a page, reads the state and deletes the
	// garbage in the page before it lists the next page, so memory is bounded.
	maxPage = 20_000
	// maxVersion is the maximum number of objects of one materialization. The files of an output are limited, but many
	// executions may have left files.
	maxVersion = 200_000
	deletes    = 16 // concurrently
	// maxFailures is how many objects a pass may fail to read or delete before it ends.
	maxFailures = 20
)

// Run runs a pass. If ctx ends, Run returns the report so far together with the error. A pass may stop at any point:
// the next pass finds the remaining garbage. An object that cannot be read or deleted does not stop the pass; the error
// names it.
func Run(ctx context.Context, cfg Config, opts Options) (Report, error) {
	opts.page, opts.version = cmp.Or(opts.page, maxPage), cmp.Or(opts.version, maxVersion)
	p := &pass{Config: cfg, opts: opts, counts: map[Count]*Count{}, checkedAssets: map[string]bool{}}
	p.report.DryRun = opts.DryRun
	prefixes := []string{contract.AssetsPrefix(cfg.Domain)}
	if len(opts.Assets) > 0 {
		prefixes = prefixes[:0]
		for _, asset := range opts.Assets {
			prefixes = append(prefixes, contract.AssetsPrefix(cfg.Domain)+asset.String()+"/")
		}
	} else {
		prefixes = append(prefixes, contract.LogsPrefix(cfg.Domain))
	}
	var err error
	for _, prefix := range prefixes {
		if err = p.prefix(ctx, prefix); err != nil || p.full() {
			break
		}
	}
	p.report.Counts = p.sorted()
	if err = errors.Join(append([]error{err}, p.failures...)...); err != nil {
		return p.report, fmt.Errorf("collect outputs of %s: %w", cfg.Domain, err)
	}
	return p.report, nil
}

// pass is the state of one pass of the collector.
type pass struct {
	Config

	opts   Options
	report Report
	counts map[Count]*Count
	known  *known
	// merged holds the merged files of the assets in the current page. checkedAssets are the assets for which the pass
	// has checked the new merged files.
	merged        map[string]*mergedAsset
	checkedAssets map[string]bool

	failures []error // errors of reading or deleting single objects
}

// noteFailure records that an object could not be read or deleted. It returns an error if the pass
// must end.
func (p *pass) noteFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if len(p.failures)+1 >= maxFailures {
		return fmt.Errorf("%w; the pass ends after %d failures", err, maxFailures)
	}
	p.failures = append(p.failures, err)
	return nil
}

func (p *pass) full() bool { return p.opts.MaxDeletes > 0 && p.report.Files >= p.opts.MaxDeletes }

// prefix collects garbage below a prefix, page by page.
func (p *pass) prefix(ctx context.Context, prefix string) error {
	if p.opts.After != "" && p.opts.After >= prefix && !strings.HasPrefix(p.opts.After, prefix) {
		return nil // the previous pass ended after this prefix
	}
	after := p.opts.After
	for {
		p.report.Next = max(after, prefix) // if this pass ends now, the next one starts here
		page, last, err := p.list(ctx, prefix, after)
		if err != nil {
			return err
		}
		if err := p.collect(ctx, prefix, page); err != nil || p.full() {
			return err
		}
		if last == "" {
			p.report.Next = ""
			return nil
		}
		after = last
	}
}

// list returns about maxPage objects after a key: logs, or whole materializations. The materializations of a partition
// may be in several pages, because the decision about a materialization depends on no other stored object. The result
// last is the last listed key, or "" if no object follows. A materialization with too many objects is kept, and the
// pass reports it.
func (p *pass) list(ctx context.Context, prefix, after string) (page []Object, last string, err error) {
	current, first, kept := "", 0, ""
	for o, err := range p.Store.List(ctx, blob.ListOptions{Prefix: prefix, StartAfter: after}) {
		if err != nil {
			return nil, "", err
		}
		cell, id, _ := p.split(o.Key)
		if of := cell + id; id == "" || of != current {
			if len(page) >= p.opts.page {
				return page, last, nil
			}
			current, first = of, len(page)
		}
		last = o.Key
		p.report.Listed++
		if current == kept {
			continue
		}
		page = append(page, Object{Key: o.Key, Size: o.Size, Updated: event.At(o.Updated)})
		if len(page)-first > p.opts.version {
			p.tooLarge(current)
			page, kept = page[:first], current
		}
	}
	return page, "", nil
}

// tooLarge reports a materialization with too many objects. It never ends the pass, because later passes would end at
// the same place.
func (p *pass) tooLarge(prefix string) {
	if len(p.failures)+1 < maxFailures {
		p.failures = append(p.failures, fmt.Errorf("%s has more than %d objects: they are kept", prefix, p.opts.version))
	}
}

// split splits the key of an output into the prefix of its partition, the materialization, and
// the name below it.
func (p *pass) split(key string) (cell, materialization, name string) {
	const deep = 3 // namespace, name, partition
	rest := strings.TrimPrefix(key, contract.AssetsPrefix(p.Domain))
	parts := strings.SplitN(rest, "/", deep+2)
	if len(parts) < deep+2 || len(rest) == len(key) {
		return path.Dir(key), "", "" // a log, or an object outside assets/
	}
	cell = contract.AssetsPrefix(p.Domain) + strings.Join(parts[:deep], "/") + "/"
	return cell, parts[deep], parts[deep+1]
}

// assetOf returns the asset key of a partition's prefix.
func (p *pass) assetOf(cell string) string {
	parts := strings.Split(strings.TrimPrefix(cell, contract.AssetsPrefix(p.Domain)), "/")
	return parts[0] + "/" + parts[1]
}

// collect deletes the garbage in a page.
func (p *pass) collect(ctx context.Context, prefix string, page []Object) error {
	if len(page) == 0 {
		return nil
	}
	now, err := p.loadState(ctx)
	if err != nil || p.known == nil {
		return err
	}
	if prefix == contract.LogsPrefix(p.Domain) {
		return p.logs(ctx, now, page)
	}
	if err := p.loadIndexes(ctx, now, page); err != nil {
		return err
	}
	cells := p.cells(page)
	batches, err := p.batches(ctx, cells)
	if err != nil {
		return err
	}
	all := cells
	for _, b := range batches {
		all = append(slices.Clip(all), b.cells...)
	}
	if err := p.known.load(ctx, p, all); err != nil {
		return err
	}
	for _, b := range batches {
		if err := p.collectBatch(ctx, now, b); err != nil {
			return err
		}
	}
	for _, c := range cells {
		if len(c.stored) == 0 {
			continue // all of its materializations are batches, which were removed above
		}
		keep, ok := p.keep(p.assetOf(c.prefix))
		if !ok {
			continue
		}
		for i := range c.stored {
			if err := p.winner(ctx, &c.stored[i]); err != nil {
				return err
			}
		}
		settled, err := p.settled(ctx, keep, c)
		if err != nil {
			return err
		}
		for _, g := range Decide(keep, now, p.known.rows(c, settled), c.stored) {
			if err := p.delete(ctx, p.assetOf(c.prefix), g); err != nil {
				return err
			}
		}
	}
	return nil
}

// settled returns Rows.Settled for a partition. A partition whose rows were not loaded does not need this value: the
// partition stores only its visible output, which nobody has hidden.
func (p *pass) settled(ctx context.Context, keep Keep, c *cell) (int64, error) {
	if !p.known.loaded[c.prefix] {
		return 0, nil
	}
	return p.known.settledSeq(ctx, p, keep.Superseded)
}

func (p *pass) keep(asset string) (Keep, bool) {
	if p.Keep == nil {
		return Keep{}.WithDefaults(), true
	}
	keep, ok := p.Keep(asset)
	return keep.WithDefaults(), ok
}

// cell is a partition with its stored materializations.
type cell struct {
	prefix string
	stored []Materialization
}

func (p *pass) cells(page []Object) []*cell {
	var cells []*cell
	for _, o := range page {
		prefix, id, name := p.split(o.Key)
		if id == "" || !ids.Valid(id) {
			continue // Servo did not create the object: never delete it
		}
		if len(cells) == 0 || cells[len(cells)-1].prefix != prefix {
			cells = append(cells, &cell{prefix: prefix})
		}
		c := cells[len(cells)-1]
		if n := len(c.stored); n == 0 || c.stored[n-1].ID != id {
			c.stored = append(c.stored, Materialization{ID: id})
		}
		m := &c.stored[len(c.stored)-1]
		if o.Key == contract.CommitMarkerKeyOf(prefix+id+"/x/") {
			m.Marker = o
		} else if o.Key == contract.QuarantineMarkerKeyOf(prefix+id+"/x/") {
			m.Blocked = o
		} else if strings.Contains(name, "/") {
			m.Files = append(m.Files, o)
		}
	}
	return cells
}

// winner sets m.Winner if several executions left files. The decision about the output or the commit marker names the
// winner.
func (p *pass) winner(ctx context.Context, m *Materialization) error {
	folders := map[string]bool{}
	key := cmp.Or(m.Marker.Key, m.Blocked.Key)
	prefix := strings.TrimSuffix(key, path.Base(key))
	for _, f := range m.Files {
		folder, _, _ := strings.Cut(strings.TrimPrefix(f.Key, prefix), "/")
		folders[folder] = true
	}
	if uri := p.known.approved[m.ID]; uri != "" {
		if batch, ok := contract.BatchOf(uri); ok {
			uri = batch
		}
		m.Approved = true
		if len(folders) > 1 {
			m.Winner = uri
		}
		return nil
	}
	if m.Marker.Key == "" || len(folders) < 2 {
		return nil
	}
	data, _, err := blob.Get(ctx, p.Store, m.Marker.Key, contract.MaxCommitMarkerBytes)
	if errors.Is(err, blob.ErrNotFound) {
		return nil // another collector has deleted the marker
	}
	if err != nil {
		return p.noteFailure(ctx, fmt.Errorf("read commit marker %s: %w", m.Marker.Key, err)) // all files are kept
	}
	marker, err := contract.DecodeCommitMarker(data)
	if err != nil || !contract.IsExecutionURI(marker.URI, prefix) {
		return nil //nolint:nilerr // `servo admin verify` reports the marker; the files are kept
	}
	m.Winner = marker.URI
	return nil
}

// logs deletes old logs, except those of live runs.
func (p *pass) logs(ctx context.Context, now event.Time, page []Object) error {
	keep, ok := p.keep("")
	for _, o := range page {
		run, _, _ := strings.Cut(strings.TrimPrefix(o.Key, contract.LogsPrefix(p.Domain)), "/")
		if !ok || now.Sub(o.Updated) < keep.Logs || p.known.runs[run] {
			continue
		}
		if err := p.delete(ctx, "", Garbage{Reason: Log, Version: run, Objects: []Object{o}}); err != nil {
			return err
		}
	}
	return nil
}

// now returns the time from which ages are measured. It is never later than the last known time of the store. A machine
// whose clock is ahead would otherwise delete too much, because everything would look old.
func (p *pass) now(published time.Time) event.Time {
	now := p.Clock.Now()
	if published.Before(now) {
		now = published
	}
	return event.At(now)
}
