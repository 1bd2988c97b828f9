// Package ids creates and parses Servo's identifiers. This package is not a stable API.
//
// Runs, plans and events have minted ids: ULIDs from a causal [Source]. All other ids are derived from the things that
// they name, so that every replica, replay and retry computes the same id. A derived id never depends on a clock.
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

// Domain is one tenant's workspace. It has its own ledger, manifests, tables and sole
// writer. Domains share nothing.
type Domain struct {
	Tenant    string
	Workspace string
}

// String returns "tenant/workspace".
func (d Domain) String() string { return d.Tenant + "/" + d.Workspace }

// Path returns the domain's part of an object key: "tenant=…/workspace=…".
func (d Domain) Path() string { return "tenant=" + d.Tenant + "/workspace=" + d.Workspace }

// Source returns the source field of events of this domain.
func (d Domain) Source() string { return "servo/" + d.Tenant + "/" + d.Workspace }

// Validate returns an error that describes invalid names.
func (d Domain) Validate() error {
	return errors.Join(validateName("tenant", d.Tenant), validateName("workspace", d.Workspace))
}

// maxName is the maximum length of a tenant or workspace name.
const maxName = 63

func validateName(what, name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%s %q has %d characters: it must have 1 to %d", what, name, len(name), maxName)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("%s %q has the character %q: only a-z, 0-9 and - are allowed", what, name, c)
		}
	}
	return nil
}

// lastTime is the time part of ULIDs of the last millisecond of the year 9999. No valid id
// is later: a [Source] that observed a later one could run out of ids.
const lastTime = "76EZ91ZPZZ"

// Valid reports whether id is a ULID in canonical form: 26 upper-case characters of
// Crockford's base 32, with a time before the year 10000.
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

// Time returns the time in a ULID, in milliseconds, or the zero time if id is not a ULID.
func Time(id string) time.Time {
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return time.Time{}
	}
	return ulid.Time(u.Time()).UTC()
}

// AtTime returns the smallest ULID with the time t in milliseconds, as a bound for
// listings. Times before 1970 are treated as 1970.
func AtTime(t time.Time) string {
	var u ulid.ULID
	if t.UnixMilli() > 0 {
		if err := u.SetTime(ulid.Timestamp(t)); err != nil {
			panic(fmt.Sprintf("ids: the time %v is after the year 10889", t))
		}
	}
	return u.String()
}

// derived returns a ULID with the time of base. Its other 80 bits are the beginning of the hash of parts.
func derived(base string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "|")))
	u, err := ulid.ParseStrict(base)
	if err != nil {
		u = ulid.ULID{} // an invalid base was rejected on input; do not fail here
	}
	copy(u[6:], sum[:10])
	return u.String()
}

// Renamed returns the id that replaces a ULID whose time is wrong. The time part of the new id is the parameter "at".
// The id depends only on the arguments.
func Renamed(id string, at time.Time) string { return derived(AtTime(at), id, "renamed") }

// AttemptID returns the id of an attempt of a task. It depends only on its arguments, so
// that the fold, a replay and a rebuild derive the same id.
func AttemptID(d Domain, runID, taskKey string, attempt int32) string {
	return derived(runID, d.Tenant, d.Workspace, runID, taskKey, strconv.Itoa(int(attempt)))
}

// MaterializationID returns the id of the materialization that a task of a run commits. All attempts of the task
// share it.
func MaterializationID(d Domain, runID, taskKey string) string {
	return derived(runID, d.Tenant, d.Workspace, runID, taskKey, "materialization")
}

// RequestedRunID returns the id of the run that a request starts. The parameter "at" is the time at which the request
// became ready to be planned. All planners of the request derive the same id.
func RequestedRunID(d Domain, requestID string, at time.Time) string {
	return derived(AtTime(at), d.Tenant, d.Workspace, requestID)
}

// TickID returns the id of the tick of a schedule at an instant. The parameter "at" is the time part of the id. If a
// command created the tick, at is the time of this command, and command is its id. Otherwise, at is the instant, and
// command is empty.
func TickID(d Domain, schedule string, instant time.Time, command string, at time.Time) string {
	return derived(AtTime(at), d.Tenant, d.Workspace, schedule, strconv.FormatInt(instant.UnixMicro(), 10), command, "tick")
}

// NotificationID returns the id of a notification, from its key and the time of its first alert.
func NotificationID(d Domain, key string, at time.Time) string {
	return derived(AtTime(at), d.Tenant, d.Workspace, key, strconv.FormatInt(at.UnixMicro(), 10), "notification")
}

// TaskID returns a ULID for a task of a run, for use where a task key is too long.
func TaskID(d Domain, runID, taskKey string) string {
	return derived(runID, d.Tenant, d.Workspace, runID, taskKey, "task")
}

// DispatchID returns the id of the dispatch of an attempt.
func DispatchID(runID, taskKey string, attempt int32) string {
	return "dispatch:" + runID + ":" + taskKey + ":" + strconv.Itoa(int(attempt))
}

// TimerID returns the id of a timer, from its type in lower case, its run, task and attempt, and the second at which it
// was first scheduled to fire.
func TimerID(timerType, runID, taskKey string, attempt int32, epochSeconds int64) string {
	return "timer:" + strings.ToLower(timerType) + ":" + runID + ":" + taskKey + ":" +
		strconv.Itoa(int(attempt)) + ":" + strconv.FormatInt(epochSeconds, 10)
}

// Kinds of queue tasks.
const (
	KindDispatch = "d"
	KindTimer    = "t"
)

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// QueueTaskID returns the name of a queue task: the kind, then a hash of the domain, the
// internal id and, if not 0, the generation. Task queues allow few characters in names and
// are slow with sequential names. See ADR 021.
func QueueTaskID(kind string, d Domain, internalID string, generation int32) string {
	name := d.Tenant + "/" + d.Workspace + "/" + internalID
	if generation > 0 {
		name += "#" + strconv.Itoa(int(generation))
	}
	sum := sha256.Sum256([]byte(name))
	return kind + "_" + base32Lower.EncodeToString(sum[:])[:26]
}
