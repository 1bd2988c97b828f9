package event

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of backfills.
const (
	MaxChunks       = 10_000    // chunks of a backfill
	MaxChunkCells   = 10_000    // partitions of a chunk
	MaxParallelRuns = 1000      // chunks of a backfill that run at once
	maxPositions    = 128 << 10 // bytes of a list of positions
)

// Orders of a backfill.
const (
	OldestFirst = "oldest"
	NewestFirst = "newest"
)

// BackfillCreated is the command to materialize many partitions in chunks. Each chunk is a run. The document at
// ChunksRef lists the partitions of each chunk, sorted by the keys of their tasks.
type BackfillCreated struct {
	// BackfillID is a ULID.
	BackfillID string `json:"backfill_id"`
	// Assets are the keys of the assets; a long list is truncated. The fields Partitions and Only are for display: they
	// contain what the caller has selected.
	Assets     []string `json:"assets"`
	Partitions []string `json:"partitions,omitempty"`
	Only       string   `json:"only,omitempty"` // stale, missing or failed
	// ChunksRef is the object key of the document. Sizes are the numbers of partitions of its chunks, in the
	// order in which the chunks start.
	ChunksRef string  `json:"chunks_ref"`
	Sizes     []int32 `json:"sizes"`
	// Stages lists, for each stage but the first, the position of its first chunk. A chunk waits until all chunks of
	// earlier stages have ended.
	Stages []int32 `json:"stages,omitempty"`
	// Ordered means that every chunk is a stage, and that the backfill pauses when a chunk does not succeed.
	Ordered bool   `json:"ordered,omitempty"`
	Order   string `json:"order,omitempty"` // oldest (default) or newest: the order of the chunks
	// MaxParallel is how many chunks run at once.
	MaxParallel int32 `json:"max_parallel"`
	// StopAt is the number of failed partitions at which the backfill pauses; 0: failures do not pause it.
	StopAt int64 `json:"stop_at,omitempty"`
	// Priority is the priority of the backfill's tasks. Pool is their pool; "": the pools of their assets.
	Priority int32  `json:"priority,omitempty"`
	Pool     string `json:"pool,omitempty"`
	// AllowIncomplete accepts missing upstream partitions even for an asset that requires all of them.
	AllowIncomplete bool `json:"allow_incomplete,omitempty"`
	// Release is the release on which all chunks are planned; "": each chunk is planned on the release that is current
	// when the chunk is planned.
	Release string `json:"release,omitempty"`
	// CommandKey and Fingerprint deduplicate the request, as in [AutomationCommand].
	CommandKey  string `json:"command_key,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// ChunkPlan is an automator's plan for the remaining partitions of a chunk. The lists contain positions in the chunk:
// see [ParsePositions]. A remaining partition that is in neither list cannot be planned.
type ChunkPlan struct {
	// Planned are the partitions of the run, in the order of the keys of their tasks.
	Planned string `json:"planned,omitempty"`
	// Done are partitions that need no run: they were materialized after the backfill was created.
	Done string `json:"done,omitempty"`
}

// Type returns the type of the event.
func (*BackfillCreated) Type() string { return "BackfillCreated" }

// Version returns the version of the payload.
func (*BackfillCreated) Version() int { return 1 }

// Key returns the natural key.
func (p *BackfillCreated) Key() string { return "backfill:" + p.BackfillID }

func (*BackfillCreated) payload() {}

// FormatPositions returns ascending positions as text: "0-57,59".
func FormatPositions(positions []int) string {
	var b strings.Builder
	for i := 0; i < len(positions); {
		first, last := positions[i], positions[i]
		for i++; i < len(positions) && positions[i] == last+1; i++ {
			last = positions[i]
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(first))
		if last > first {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(last))
		}
	}
	return b.String()
}

// ParsePositions reads what [FormatPositions] writes. The positions are less than [MaxChunkCells].
func ParsePositions(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var found []int
	next := 0
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := position(from)
		last := first
		if err == nil && isRange {
			last, err = position(to)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("%.40q is not a list of positions such as 0-57,59: %w", text, err)
		case first < next || isRange && last <= first:
			return nil, fmt.Errorf("%.40q is not a list of positions: they must ascend", text)
		}
		for n := first; n <= last; n++ {
			found = append(found, n)
		}
		next = last + 1
	}
	return found, nil
}

var errPosition = errors.New("a position is a number without leading zeros, less than " + strconv.Itoa(MaxChunkCells))

func position(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= MaxChunkCells || strconv.Itoa(n) != text {
		return 0, errPosition
	}
	return n, nil
}

func (c *checker) backfillCreated(p *BackfillCreated) {
	c.commandKey(p.CommandKey, p.Fingerprint)
	c.ulid("payload.backfill_id", p.BackfillID)
	if len(p.Assets) == 0 {
		c.fail("payload.assets", "is empty")
	}
	c.atMost("payload.assets (count)", int64(len(p.Assets)), MaxSelection)
	for i, key := range p.Assets {
		c.assetKey(fmt.Sprintf("payload.assets[%d]", i), key)
	}
	c.selections("payload.partitions", p.Partitions)
	c.optionalOneOf("payload.only", p.Only, OnlyStale, OnlyMissing, OnlyFailed)
	if p.ChunksRef == "" {
		c.fail("payload.chunks_ref", "is empty")
	}
	c.text("payload.chunks_ref", p.ChunksRef, MaxRef)
	if len(p.Sizes) == 0 || len(p.Sizes) > MaxChunks {
		c.fail("payload.sizes (count)", "%d is not between 1 and %d", len(p.Sizes), MaxChunks)
	}
	for i, size := range p.Sizes {
		if size < 1 || size > MaxChunkCells {
			c.fail(fmt.Sprintf("payload.sizes[%d]", i), "%d is not between 1 and %d", size, MaxChunkCells)
		}
	}
	c.stages(p)
	c.optionalOneOf("payload.order", p.Order, OldestFirst, NewestFirst)
	if p.MaxParallel < 1 || p.MaxParallel > MaxParallelRuns {
		c.fail("payload.max_parallel", "%d is not between 1 and %d", p.MaxParallel, MaxParallelRuns)
	}
	c.count("payload.stop_at", p.StopAt)
	c.text("payload.pool", p.Pool, MaxName)
	if p.Release != "" {
		c.hex("payload.release", p.Release, digitsOfRelease)
	}
}

// stages validates the list of the chunks that start a stage.
func (c *checker) stages(p *BackfillCreated) {
	last := int32(0)
	for i, chunk := range p.Stages {
		if chunk <= last || int(chunk) >= len(p.Sizes) {
			c.fail(fmt.Sprintf("payload.stages[%d]", i), "%d is not allowed: the numbers must ascend from 1, and be less than the number of chunks", chunk)
			return
		}
		last = chunk
	}
	switch {
	case p.Ordered && len(p.Stages) > 0:
		c.fail("payload.stages", "is not allowed for an ordered backfill")
	case p.Ordered && p.MaxParallel > 1:
		c.fail("payload.max_parallel", "is %d, but an ordered backfill runs one chunk at a time", p.MaxParallel)
	}
}

// chunkPlan validates a ChunkPlan.
func (c *checker) chunkPlan(path string, p *ChunkPlan) {
	if p == nil {
		return
	}
	taken := map[int]bool{}
	for _, list := range []struct{ name, text string }{{".planned", p.Planned}, {".done", p.Done}} {
		c.text(path+list.name, list.text, maxPositions)
		if len(list.text) > maxPositions {
			return
		}
		positions, err := ParsePositions(list.text)
		if err != nil {
			c.fail(path+list.name, "%v", err)
		}
		for _, n := range positions {
			if taken[n] {
				c.fail(path+list.name, "position %d is in both lists", n)
			}
			taken[n] = true
		}
	}
}
