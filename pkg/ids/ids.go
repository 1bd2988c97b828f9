// Package ids makes and reads Servo's identifiers.
//
// Some are minted (runs, plans, events: ULIDs from a causal [Source]); the
// others are derived from what they name, so that every replica, replay and
// retry arrives at the same one. A derived id never depends on a clock.
package ids

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// Domain is one tenant's workspace: a ledger, a manifest, tables and a sole
// writer of its own. Domains share nothing.
type Domain struct {
	Tenant    string
	Workspace string
}

// String is "tenant/workspace".
func (d Domain) String() string { return d.Tenant + "/" + d.Workspace }

// Path is the domain's part of an object key: "tenant=…/workspace=…".
func (d Domain) Path() string { return "tenant=" + d.Tenant + "/workspace=" + d.Workspace }

// Source is the value of an event's source field for this domain.
func (d Domain) Source() string { return "servo/" + d.Tenant + "/" + d.Workspace }

// Validate reports what is wrong with the domain's names.
func (d Domain) Validate() error {
	return errors.Join(validateName("tenant", d.Tenant), validateName("workspace", d.Workspace))
}

// maxName is the longest tenant or workspace name.
const maxName = 63

func validateName(what, name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%s %q has %d characters; it must have 1 to %d", what, name, len(name), maxName)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("%s %q has the character %q; only a-z, 0-9 and - are allowed", what, name, c)
		}
	}
	return nil
}

// lastTime is the time part of ULIDs of the last millisecond of the year 9999.
// Nothing honest is younger, and a [Source] that observed more could run out.
const lastTime = "76EZ91ZPZZ"

// Valid reports whether id is a ULID in its canonical form: 26 upper-case
// characters of Crockford's base 32, with a time before the year 10000.
func Valid(id string) bool {
	if len(id) != ulid.EncodedSize || id[:len(lastTime)] > lastTime {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case c >= '0' && c <= '9':
		case c >= 'A' && c <= 'Z' && c != 'I' && c != 'L' && c != 'O' && c != 'U':
		default:
			return false
		}
	}
	return true
}

// Time is the time in a ULID, to the millisecond. It is zero when id is not a ULID.
func Time(id string) time.Time {
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return time.Time{}
	}
	return ulid.Time(u.Time()).UTC()
}

// AtTime is the least ULID with the time t, to the millisecond: a bound for
// listings. Times before 1970 have that of 1970.
func AtTime(t time.Time) string {
	var u ulid.ULID
	if t.UnixMilli() > 0 {
		if err := u.SetTime(ulid.Timestamp(t)); err != nil {
			panic(fmt.Sprintf("ids: the time %v is past the year 10889", t))
		}
	}
	return u.String()
}

// derived is a ULID with the time of base and 80 bits of the hash of parts.
func derived(base string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "|")))
	u, err := ulid.ParseStrict(base)
	if err != nil {
		u = ulid.ULID{} // a base that is no ULID was refused where it came in; stay total here
	}
	copy(u[6:], sum[:10])
	return u.String()
}

// Renamed is the name that takes the place of a ULID whose time is wrong: one with
// the right time, and the same for everybody who knows both.
func Renamed(id string, at time.Time) string { return derived(AtTime(at), id, "renamed") }

// AttemptID names an attempt at a task. It is a function of its key alone, so
// that the fold, a replay and a rebuild all derive the same one.
func AttemptID(d Domain, runID, taskKey string, attempt int32) string {
	return derived(runID, d.Tenant, d.Workspace, runID, taskKey, strconv.Itoa(int(attempt)))
}

// MaterializationID names what a task of a run makes, whichever attempt makes it.
func MaterializationID(d Domain, runID, taskKey string) string {
	return derived(runID, d.Tenant, d.Workspace, runID, taskKey, "materialization")
}

// TaskID names a task of a run as a ULID, where a task key is too long.
func TaskID(d Domain, runID, taskKey string) string {
	return derived(runID, d.Tenant, d.Workspace, runID, taskKey, "task")
}

// DispatchID names the dispatch of an attempt.
func DispatchID(runID, taskKey string, attempt int32) string {
	return "dispatch:" + runID + ":" + taskKey + ":" + strconv.Itoa(int(attempt))
}

// TimerID names a timer: its type in lower case, what it belongs to, and the
// second it was first to fire at.
func TimerID(timerType, runID, taskKey string, attempt int32, epochSeconds int64) string {
	return "timer:" + strings.ToLower(timerType) + ":" + runID + ":" + taskKey + ":" +
		strconv.Itoa(int(attempt)) + ":" + strconv.FormatInt(epochSeconds, 10)
}

// Kinds of queue task.
const (
	KindDispatch = "d"
	KindTimer    = "t"
)

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// QueueTaskID is the name of a queue task: kind, then a hash of the domain, the
// internal id and, from the second on, its generation. Task queues allow few
// characters in names and are slow with sequential ones. See ADR 021.
func QueueTaskID(kind string, d Domain, internalID string, generation int32) string {
	name := d.Tenant + "/" + d.Workspace + "/" + internalID
	if generation > 0 {
		name += "#" + strconv.Itoa(int(generation))
	}
	sum := sha256.Sum256([]byte(name))
	return kind + "_" + base32Lower.EncodeToString(sum[:])[:26]
}
