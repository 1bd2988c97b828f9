package event

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
)

// Limits of deadlines.
const (
	MaxWatched      = 2000 // watched assets of a release
	MaxJudged       = 200  // items of one DeadlineJudged
	MaxMissing      = 1000 // missing partitions that one event names
	MaxDaysAfter    = 366
	MaxDeadlineSec  = 366 * 24 * 3600
	layoutOfTheTime = "15:04"
)

// WatchedAsset is an asset with a deadline, a freshness limit or an SLA.
type WatchedAsset struct {
	Asset    string    `json:"asset"`
	Deadline *Deadline `json:"deadline,omitempty"`
	// MaxLagSec is how old the newest output may be; 0: any age.
	MaxLagSec int64 `json:"max_lag_sec,omitempty"`
	// RunSec limits the time from the trigger of a run to the end of the asset's tasks. TaskSec limits the time from
	// the admission of a task to its end. 0: no limit.
	RunSec  int64 `json:"run_sec,omitempty"`
	TaskSec int64 `json:"task_sec,omitempty"`
}

// Deadline is the time by which the partitions of a period must be materialized. An asset without a time dimension
// has one deadline a day.
type Deadline struct {
	// By is the local time of the deadline, HH:MM, on the day that is DaysAfter days after the last day of the period.
	By        string `json:"by,omitempty"`
	Timezone  string `json:"timezone,omitempty"` // default: the zone of the partitions, or "UTC"
	DaysAfter int32  `json:"days_after,omitempty"`
	// AfterEndSec is set instead of By if the deadline is this many seconds after the end of the period.
	AfterEndSec int64 `json:"after_end_sec,omitempty"`
}

// Version returns a hash that identifies this definition of the deadline.
func (d *Deadline) Version() string { return shortHash(d) }

// DeadlineJudged tells the fold whether deadlines were met, and when the next ones are. The fold can determine
// neither: it has no calendar, and its state does not contain the staleness of partitions.
type DeadlineJudged struct {
	Items []JudgedDeadline `json:"items"`
}

// Verdicts about deadlines.
const (
	DeadlineMet    = "met"
	DeadlineMissed = "missed"
)

// JudgedDeadline is a verdict about one deadline of an asset, and the asset's next deadline.
type JudgedDeadline struct {
	Asset   string `json:"asset"`
	Version string `json:"version"` // the version of the definition that the automator read
	// Period is the value of the time dimension, and DueAt is its deadline. Both are copied from the row of the asset.
	// If the row has no deadline yet, Period, DueAt and Verdict are empty.
	Period  string `json:"period,omitempty"`
	DueAt   Time   `json:"due_at,omitempty,omitzero"`
	Verdict string `json:"verdict,omitempty"`
	// ObservedSeq is the fold sequence of the state that was judged. Missing lists partitions that are
	// missing or stale in this state, and More counts those that the list omits.
	ObservedSeq int64    `json:"observed_seq,omitempty"`
	Missing     []string `json:"missing,omitempty"`
	More        int64    `json:"more,omitempty"`
	// Next and NextAt are the next period and its deadline. Both are empty if there is no next deadline.
	Next   string `json:"next,omitempty"`
	NextAt Time   `json:"next_at,omitempty,omitzero"`
	// Error says why there is no verdict.
	Error string `json:"error,omitempty"`
}

// Key returns the natural key, a hash of the assets and deadlines of the items.
func (p *DeadlineJudged) Key() string {
	var b strings.Builder
	for i := range p.Items {
		x := &p.Items[i]
		fmt.Fprintf(&b, "%s|%s|%s|%d|%d;", x.Asset, x.Version, x.Period, x.DueAt, x.ObservedSeq)
	}
	sum := sha256.Sum256([]byte(b.String()))
	return "deadlines:" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:26])
}

func (c *checker) watched(path string, all []WatchedAsset) {
	c.atMost(path+" (count)", int64(len(all)), MaxWatched)
	for i := range all {
		w, at := &all[i], fmt.Sprintf("%s[%d]", path, i)
		c.assetKey(at+".asset", w.Asset)
		if i > 0 && all[i-1].Asset >= w.Asset {
			c.fail(at+".asset", "must be after the previous asset: items are sorted by asset")
		}
		c.atMost(at+".max_lag_sec", w.MaxLagSec, MaxDeadlineSec)
		c.atMost(at+".run_sec", w.RunSec, MaxDeadlineSec)
		c.atMost(at+".task_sec", w.TaskSec, MaxDeadlineSec)
		if d := w.Deadline; d != nil {
			c.text(at+".deadline.by", d.By, len(layoutOfTheTime))
			c.text(at+".deadline.timezone", d.Timezone, MaxName)
			c.atMost(at+".deadline.days_after", int64(d.DaysAfter), MaxDaysAfter)
			c.atMost(at+".deadline.after_end_sec", d.AfterEndSec, MaxDeadlineSec)
		}
	}
}

func (c *checker) deadlineJudged(p *DeadlineJudged) {
	if len(p.Items) == 0 || len(p.Items) > MaxJudged {
		c.fail("payload.items (count)", "%d is not between 1 and %d", len(p.Items), MaxJudged)
	}
	missing := 0
	for i := range p.Items {
		x, path := &p.Items[i], fmt.Sprintf("payload.items[%d]", i)
		c.assetKey(path+".asset", x.Asset)
		c.hex(path+".version", x.Version, digitsOfCode)
		c.text(path+".period", x.Period, MaxName)
		c.optionalTime(path+".due_at", x.DueAt)
		c.optionalOneOf(path+".verdict", x.Verdict, DeadlineMet, DeadlineMissed)
		c.count(path+".observed_seq", x.ObservedSeq)
		c.count(path+".more", x.More)
		c.text(path+".next", x.Next, MaxName)
		c.optionalTime(path+".next_at", x.NextAt)
		c.text(path+".error", x.Error, MaxRef)
		for j, key := range x.Missing {
			c.text(fmt.Sprintf("%s.missing[%d]", path, j), key, MaxRef)
		}
		missing += len(x.Missing)
		switch {
		case x.Verdict != "" && x.DueAt == 0:
			c.fail(path+".due_at", "is required for a verdict")
		case (x.Verdict == DeadlineMissed) != (len(x.Missing) > 0):
			c.fail(path+".missing", "is required for the verdict missed, and not allowed for others")
		}
	}
	c.atMost("payload.items (missing partitions)", int64(missing), MaxMissing)
}
