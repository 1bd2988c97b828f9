package state

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// BackfillState is the state of a backfill.
type BackfillState string

// Backfill states. The last three are final, but a retry makes a FAILED backfill RUNNING again.
const (
	BackfillRunning    BackfillState = "RUNNING"    // starts chunks
	BackfillPaused     BackfillState = "PAUSED"     // starts no chunks; running chunks continue
	BackfillCancelling BackfillState = "CANCELLING" // the last runs of the backfill are being cancelled
	BackfillSucceeded  BackfillState = "SUCCEEDED"
	BackfillFailed     BackfillState = "FAILED" // partitions have failed or were skipped
	BackfillCancelled  BackfillState = "CANCELLED"
)

// Ended reports whether a backfill in this state has ended: none of its partitions is running or to be done.
func (s BackfillState) Ended() bool {
	return s == BackfillSucceeded || s == BackfillFailed || s == BackfillCancelled
}

// Limits of backfills.
const (
	// MaxBackfills is the maximum number of a domain's backfills that have not ended.
	MaxBackfills = 100
	// BackfillKept is how long an ended backfill stays in the live state. It is longer than the maximum age at which the
	// fold accepts the event that creates a backfill.
	BackfillKept = time.Hour
	// RetryableFor is how long a FAILED backfill can be retried.
	RetryableFor = 30 * 24 * time.Hour
)

// Backfill is a row of backfills: many partitions that are materialized in chunks.
//
// In every revision, each partition is in exactly one of these sets: left, done, failed, skipped, cancelled. A
// running partition is in the set left.
type Backfill struct {
	BackfillID string `col:"backfill_id,key"` // a ULID
	CreatedBy  string `col:"created_by,null,dict"`
	// Assets and Selection are JSON lists: the assets, and the selections of partitions. Only is a status: the backfill
	// contains only the partitions that had this status when the backfill was created. "": any status.
	Assets    string `col:"assets"`
	Selection string `col:"partition_selection,null"`
	Only      string `col:"only_status,null,dict"`
	ChunksRef string `col:"chunks_ref"` // the document with the partitions of each chunk
	Release   string `col:"release,null,dict"`
	Priority  int32  `col:"priority"`
	Pool      string `col:"pool,null,dict"`
	// AllowIncomplete accepts missing partitions of upstream assets.
	AllowIncomplete bool `col:"allow_incomplete"`
	// Ordered means that a chunk starts only when the chunk before it has succeeded.
	Ordered     bool          `col:"ordered"`
	Order       string        `col:"chunk_order,dict"` // oldest or newest
	MaxParallel int32         `col:"max_parallel"`
	StopAt      int64         `col:"stop_at,null"` // the backfill pauses when Failures reaches this number
	State       BackfillState `col:"state,dict"`
	// CommandID is the id of the newest command about the backfill.
	CommandID   string     `col:"command_id,null"`
	PausedAt    event.Time `col:"paused_at,null"`
	PausedBy    string     `col:"paused_by,null,dict"` // a principal; "": the fold
	PauseReason string     `col:"pause_reason,null"`
	// Round is how often failed partitions of the backfill were retried. Failures is the number of partitions that have
	// failed since the backfill was created, resumed or retried.
	Round    int32 `col:"retries"`
	Failures int64 `col:"failures"`
	// CreatedSeq is the fold sequence number of the creation. A version of a partition with a greater number is newer
	// than the backfill.
	CreatedSeq  int64      `col:"created_seq"`
	Chunks      int32      `col:"chunks_total"`
	ChunksEnded int32      `col:"chunks_ended"`
	Cells       int64      `col:"partitions_total"`
	Left        int64      `col:"partitions_left"`
	Running     int64      `col:"partitions_running"`
	Done        int64      `col:"partitions_done"`
	Failed      int64      `col:"partitions_failed"`
	Skipped     int64      `col:"partitions_skipped"`
	Cancelled   int64      `col:"partitions_cancelled"`
	CreatedAt   event.Time `col:"created_at"`
	EndedAt     event.Time `col:"ended_at,null"`
	Meta
}

// Key returns the primary key.
func (r *Backfill) Key() string { return r.BackfillID }

func (*Backfill) newTable() store { return new(rowTable[string, Backfill, *Backfill]) }

// Closed reports whether a backfill is closed at a fold time: it can never change again.
func (r *Backfill) Closed(now event.Time) bool {
	kept := BackfillKept
	if r.State == BackfillFailed {
		kept = RetryableFor
	}
	return r.State.Ended() && now.Sub(r.EndedAt) >= kept
}

func (r *Backfill) evictable(_ *State, c *cut) (closed, stop bool) { return r.Closed(c.Time), false }

// ChunkState is the state of a chunk.
type ChunkState string

// Chunk states.
const (
	ChunkWaiting   ChunkState = "WAITING"   // waits until the backfill may run another chunk
	ChunkRequested ChunkState = "REQUESTED" // the run of the chunk is being planned
	ChunkRunning   ChunkState = "RUNNING"   // has a live run
	ChunkEnded     ChunkState = "ENDED"     // no partition of the chunk is running or to be done
)

// ChunkKey is the primary key of backfill_chunks.
type ChunkKey struct {
	BackfillID string
	Chunk      int32
}

func compareChunk(a, b ChunkKey) int {
	return cmp.Or(strings.Compare(a.BackfillID, b.BackfillID), cmp.Compare(a.Chunk, b.Chunk))
}

// Chunk is a row of backfill_chunks: the partitions of a backfill that one run materializes.
type Chunk struct {
	BackfillID string     `col:"backfill_id,key"`
	Chunk      int32      `col:"chunk,key"` // the number of the chunk, from 0; chunks start in the order of their numbers
	Stage      int32      `col:"stage"`     // the chunk starts when all chunks of earlier stages have ended
	State      ChunkState `col:"state,dict"`
	Try        int32      `col:"try"`             // number of earlier requests: each was withdrawn, or its run has ended
	RequestID  string     `col:"request_id,null"` // set while the chunk is REQUESTED
	RunID      string     `col:"run_id,null"`     // the last run
	// Requeue means that the run is being cancelled, and that its unfinished partitions will run later.
	Requeue bool `col:"requeue"`
	// Cells contains the states of the partitions: see [Cells].
	Cells string `col:"partitions"`
	// Codes is a JSON object that maps error codes to the number of partitions that failed or were skipped with this
	// code.
	Codes       string     `col:"error_codes,null"`
	RequestedAt event.Time `col:"requested_at,null"`
	StartedAt   event.Time `col:"started_at,null"`
	EndedAt     event.Time `col:"ended_at,null"`
	Meta
}

// Key returns the primary key.
func (r *Chunk) Key() ChunkKey { return ChunkKey{r.BackfillID, r.Chunk} }

func (*Chunk) newTable() store { return new(rowTable[ChunkKey, Chunk, *Chunk]) }

// The chunks of a backfill move to history with the backfill. The row of the backfill is evicted before the rows of
// its chunks.
func (r *Chunk) evictable(s *State, _ *cut) (closed, stop bool) {
	return s.Backfills.Get(r.BackfillID) == nil, false
}

// Live reports whether the chunk counts towards [Backfill.MaxParallel].
func (r *Chunk) Live() bool { return r.State == ChunkRequested || r.State == ChunkRunning }

// chunkRequest is the prefix of the ids of requests for chunks.
const chunkRequest = "chunk:"

// ChunkRequestID returns the id of the request for a chunk.
func ChunkRequestID(backfill string, chunk, try int32) string {
	return chunkRequest + backfill + ":" + strconv.Itoa(int(chunk)) + ":" + strconv.Itoa(int(try))
}

// ParseChunkRequest returns the key of the chunk for which a request was made, and the number of the try. It returns
// false for requests that are not for chunks.
func ParseChunkRequest(id string) (key ChunkKey, try int32, ok bool) {
	rest, ok := strings.CutPrefix(id, chunkRequest)
	parts := strings.Split(rest, ":")
	if !ok || len(parts) != 3 || !ids.Valid(parts[0]) {
		return ChunkKey{}, 0, false
	}
	chunk, err := strconv.ParseInt(parts[1], 10, 32)
	tries, err2 := strconv.ParseInt(parts[2], 10, 32)
	return ChunkKey{parts[0], int32(chunk)}, int32(tries), err == nil && err2 == nil && chunk >= 0 && tries >= 0
}

// Cells are the states of a chunk's partitions, one letter each, in the order of the keys of their tasks. In the text
// form, a sequence of equal letters is written as their number and the letter: "58r1l".
type Cells []byte

// The states of partitions.
const (
	CellLeft      = 'l' // to be done
	CellRunning   = 'r' // to be done; the current run materializes it
	CellDone      = 'd' // materialized, or its task had nothing to do
	CellFailed    = 'f'
	CellSkipped   = 's' // not tried: an upstream failed, an input is missing, or its run was cancelled
	CellCancelled = 'c' // cancelled together with the backfill
)

const cellStates = "lrdfsc"

// NewCells returns the states of n partitions, all [CellLeft].
func NewCells(n int32) Cells { return Cells(strings.Repeat(string(CellLeft), int(n))) }

// String returns the cells as text.
func (c Cells) String() string {
	var b strings.Builder
	for i := 0; i < len(c); {
		j := i
		for j < len(c) && c[j] == c[i] {
			j++
		}
		b.WriteString(strconv.Itoa(j - i))
		b.WriteByte(c[i])
		i = j
	}
	return b.String()
}

// ParseCells reads what [Cells.String] writes.
func ParseCells(text string) (Cells, error) {
	var c Cells
	for rest := text; rest != ""; {
		at := strings.IndexAny(rest, cellStates)
		if at < 0 {
			return nil, fmt.Errorf("%.40q are not states of partitions", text)
		}
		n, err := strconv.Atoi(rest[:at])
		if err != nil || n < 1 || len(c)+n > event.MaxChunkCells {
			return nil, fmt.Errorf("%.40q are not states of partitions", text)
		}
		c = append(c, strings.Repeat(rest[at:at+1], n)...)
		rest = rest[at+1:]
	}
	return c, nil
}

// Count returns the number of partitions in a state.
func (c Cells) Count(cell byte) (n int64) {
	for _, have := range c {
		if have == cell {
			n++
		}
	}
	return n
}

// backfills holds the indexes of the chunks of backfills.
type backfills struct {
	waiting sorted[ChunkKey]
	live    sorted[ChunkKey]
	open    int // number of backfills that have not ended
}

func newBackfills() backfills {
	less := func(a, b ChunkKey) bool { return compareChunk(a, b) < 0 }
	return backfills{waiting: newSorted(less), live: newSorted(less)}
}

func (b backfills) copy() backfills {
	return backfills{waiting: b.waiting.copy(), live: b.live.copy(), open: b.open}
}

func (r *Backfill) reindex(s *State, old *Backfill) {
	if old != nil && !old.State.Ended() {
		s.index.backfills.open--
	}
	if !r.Deleted && !r.State.Ended() {
		s.index.backfills.open++
	}
}

func (r *Chunk) reindex(s *State, old *Chunk) {
	b := &s.index.backfills
	if old != nil {
		b.waiting.Delete(old.Key())
		b.live.Delete(old.Key())
	}
	switch {
	case r.Deleted:
	case r.State == ChunkWaiting:
		b.waiting.Set(r.Key())
	case r.Live():
		b.live.Set(r.Key())
	}
}

// OpenBackfills returns the number of backfills that have not ended.
func (s *State) OpenBackfills() int { return s.index.backfills.open }

// NextChunk returns the first waiting chunk of a backfill, or nil.
func (s *State) NextChunk(backfill string) (next *Chunk) {
	s.index.backfills.waiting.Ascend(ChunkKey{BackfillID: backfill}, func(k ChunkKey) bool {
		if k.BackfillID == backfill {
			next = s.Chunks.Get(k)
		}
		return false
	})
	return next
}

// LiveChunks returns the chunks of a backfill that are requested or running.
func (s *State) LiveChunks(backfill string) (live []*Chunk) {
	s.index.backfills.live.Ascend(ChunkKey{BackfillID: backfill}, func(k ChunkKey) bool {
		if k.BackfillID != backfill {
			return false
		}
		live = append(live, s.Chunks.Get(k))
		return true
	})
	return live
}

// ChunksOf calls yield for the chunks of a backfill, in their order.
func (s *State) ChunksOf(backfill string, yield func(*Chunk) bool) {
	s.Chunks.Ascend(ChunkKey{BackfillID: backfill}, func(r *Chunk) bool { return r.BackfillID == backfill && yield(r) })
}

// same compares the indexes with those of the parameter want, and returns an error if they differ.
func (b *backfills) same(want *backfills) error {
	for _, err := range []error{
		same("waiting chunks", b.waiting.Items(), want.waiting.Items()),
		same("live chunks", b.live.Items(), want.live.Items()),
		same("open backfills", []int{b.open}, []int{want.open}),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}
