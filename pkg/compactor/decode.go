package compactor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// decode reads and decodes an entry, and refuses groups that are too far ahead of the store's clock. An entry that an
// older build refused may be in the archive by now, so decode reads such an entry through the parameter archived, a
// reader of the archive.
func (c *Compactor) decode(ctx context.Context, e Entry, archived *archive.Reader) ([]fold.Group, error) {
	var groups []fold.Group
	if size := e.bytes(); size > ledger.MaxEntryBytes {
		groups = []fold.Group{tooLarge(e.ID, size)}
	} else {
		data, stored, err := c.read(ctx, e, archived)
		if errors.Is(err, blob.ErrNotFound) {
			return nil, nil // announced by mistake, or already archived
		}
		g, refused := RefusedRead(e.ID, err)
		switch {
		case refused:
			groups = []fold.Group{g}
		case err != nil:
			return nil, err
		default:
			groups, e.Stored = c.cfg.Decode(e.ID, data), stored
		}
	}
	return c.refuseAhead(ctx, e, groups)
}

// refuseAhead turns those groups of an entry into dead letters that are too far ahead of the time at which the store
// created the entry: see [RefuseAhead]. It returns all groups, including the dead letters. If it must ask the store for
// this time and the entry is no longer in the ledger, it returns no groups, because the entry was archived.
func (c *Compactor) refuseAhead(ctx context.Context, e Entry, groups []fold.Group) ([]fold.Group, error) {
	if e.Stored.IsZero() {
		object, err := c.cfg.Store.Head(ctx, ledger.Key(c.cfg.Domain, e.ID))
		if errors.Is(err, blob.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("look up ledger entry %s: %w", e.ID, err)
		}
		e.Stored = object.Updated
	}
	c.storeTime.observe(e.Stored)
	RefuseAhead(groups, e.Stored)
	return groups, nil
}

// read returns the content of an entry. It also returns the time at which the store created the entry, if it can do
// so without an extra request.
func (c *Compactor) read(ctx context.Context, e Entry, archived *archive.Reader) (data []byte, stored time.Time, err error) {
	switch key := ledger.Key(c.cfg.Domain, e.ID); {
	case e.Data != nil:
		return e.Data, e.Stored, nil
	case e.refused:
		return archived.ReadStored(ctx, e.ID)
	case e.Stored.IsZero():
		return ledger.ReadStored(ctx, c.cfg.Store, key)
	default:
		data, err = ledger.Read(ctx, c.cfg.Store, key)
		return data, e.Stored, err
	}
}

// WholeEntry is the group id of an entry that is refused as a whole, before the fold sees its
// groups. No line of an entry can have this id.
const WholeEntry = "entry"

// Refused returns the only group of an entry that is refused as a whole. This group becomes one dead letter with a
// reason and a detail. The bytes of the entry may not show why it was refused, so a replay takes reason, detail and
// size from the row that records the entry.
func Refused(entry, reason, detail string, size int64) fold.Group {
	return fold.Group{Entry: entry, ID: WholeEntry, Reason: reason, Detail: detail, Bytes: size}
}

// RefusedRead returns the refused group of an entry that can never be read, because it is too large. The parameter err
// is the result of reading the entry. For nil and for any other error, RefusedRead returns false.
func RefusedRead(entry string, err error) (fold.Group, bool) {
	if large, ok := errors.AsType[*blob.TooLargeError](err); ok {
		return tooLarge(entry, large.Size), true
	}
	return fold.Group{}, false
}

// ReasonSkipped is the reason of the dead letter that replaces an unreadable entry, after an operator has decided to
// skip the entry.
const ReasonSkipped = "SKIPPED"

// Skipped returns the group of an unreadable entry that an operator has decided to skip.
func Skipped(s ledger.Skip) fold.Group {
	return Refused(s.Entry, ReasonSkipped, fmt.Sprintf("skipped by %s at %s: %s", s.By, s.At, s.Reason), 0)
}

func tooLarge(entry string, size int64) fold.Group {
	detail := fmt.Sprintf("the entry has %d bytes, at most %d are allowed: it was not read", size, ledger.MaxEntryBytes)
	return Refused(entry, event.ReasonTooLarge, detail, size)
}

// Decode returns the groups of an entry for the fold. An entry with too many events becomes a single refused group.
func Decode(entry string, data []byte) []fold.Group {
	lines := event.DecodeEntry(data)
	if len(lines) > event.MaxEntryEvents {
		detail := fmt.Sprintf("the entry has more than %d events", event.MaxEntryEvents)
		return []fold.Group{Refused(entry, event.ReasonTooLarge, detail, int64(len(data)))}
	}
	decoded := event.Groups(lines)
	if len(decoded) == 0 {
		return []fold.Group{{
			Entry: entry, ID: "line-0", Reason: event.ReasonMalformed, Detail: "the entry has no lines",
			Bytes: int64(len(data)),
		}}
	}
	groups := make([]fold.Group, len(decoded))
	for i, g := range decoded {
		groups[i] = fold.Group{Entry: entry, ID: g.ID, Events: g.Events, Bytes: g.Bytes}
		if g.Err != nil {
			groups[i].Reason, groups[i].Detail = g.Err.Reason, g.Err.Detail
		}
	}
	return groups
}

// FetchPlans reads the plans that groups refer to. It returns an error if a plan cannot be read
// now. If a plan is missing or invalid for good, FetchPlans stores the reason in the group, for the fold.
func FetchPlans(ctx context.Context, store blob.Store, d ids.Domain, groups []fold.Group) error {
	for i := range groups {
		for _, e := range groups[i].Events {
			p, ok := e.Payload.(*event.PlanCreated)
			if !ok || len(p.Tasks) > 0 || p.PlanRef == "" {
				continue
			}
			fetched, err := fetchPlan(ctx, store, d, p.PlanRef)
			if err != nil {
				return err
			}
			if groups[i].Plans == nil {
				groups[i].Plans = map[string]fold.Plan{}
			}
			groups[i].Plans[p.PlanRef] = fetched
		}
	}
	return nil
}

// PlanPrefix returns the prefix of the keys of a domain's plans.
func PlanPrefix(d ids.Domain) string { return "plans/" + d.Path() + "/" }

func fetchPlan(ctx context.Context, store blob.Store, d ids.Domain, ref string) (fold.Plan, error) {
	if !strings.HasPrefix(ref, PlanPrefix(d)) {
		return fold.Plan{Err: "the plan " + ref + " does not belong to this domain"}, nil
	}
	data, _, err := blob.Get(ctx, store, ref, event.MaxPlanBytes)
	if errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrInvalid) {
		return fold.Plan{Err: "the plan " + ref + " does not exist"}, nil
	}
	if large, ok := errors.AsType[*blob.TooLargeError](err); ok {
		return fold.Plan{Err: fmt.Sprintf("the plan %s has %d bytes; at most %d are allowed", ref, large.Size, large.Limit)}, nil
	}
	if err != nil {
		return fold.Plan{}, fmt.Errorf("read plan: %w", err)
	}
	var doc struct {
		Tasks []event.TaskDef `json:"tasks"`
	}
	err = countTasks(data)
	if err == nil {
		err = json.Unmarshal(data, &doc)
	}
	if err != nil {
		return fold.Plan{Err: fmt.Sprintf("the plan %s cannot be decoded: %v", ref, err)}, nil
	}
	if err := event.ValidateTasks(doc.Tasks); err != nil {
		return fold.Plan{Err: fmt.Sprintf("the plan %s is not valid: %v", ref, err)}, nil
	}
	return fold.Plan{Tasks: doc.Tasks}, nil
}

const (
	// maxPlanTasks is the maximum number of tasks in a plan that is decoded. Package plan creates no larger plans. The
	// limit protects memory against other documents: a task may take three bytes of text, but hundreds of bytes of
	// memory.
	maxPlanTasks = 200_000
	// maxUncountedBytes is the size up to which a plan is decoded without counting its tasks.
	maxUncountedBytes = 1 << 20
)

// countTasks returns an error if a large document has too many tasks to be decoded. It does not
// keep the document's values in memory.
func countTasks(data []byte) error {
	if len(data) <= maxUncountedBytes {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewReader(data))
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		if !strings.EqualFold(name.String(), "tasks") || d.PeekKind() != '[' { // json.Unmarshal ignores case
			if err := d.SkipValue(); err != nil {
				return err
			}
			continue
		}
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		for n := 0; d.PeekKind() != ']'; n++ {
			if n == maxPlanTasks {
				return fmt.Errorf("it has more than %d tasks", maxPlanTasks)
			}
			if err := d.SkipValue(); err != nil {
				return err
			}
		}
		if _, err := d.ReadToken(); err != nil {
			return err
		}
	}
	return nil
}
