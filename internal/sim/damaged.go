package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// maxUndamaged bounds how long an output stays intact before it is damaged. maxUnrestored bounds how long it stays
// damaged before an operator restores it from a backup.
const (
	maxUndamaged  = 10 * time.Minute
	maxUnrestored = 5 * time.Minute
)

// drawDamage enables damage of committed outputs in some worlds. It must run after drawOutage and drawSweeps. These two
// draw some faults only in worlds that have faults already, and damage must not count as one of those.
func (c *World) drawDamage() {
	if r := random(c.Seed, "damaged outputs", 0); r.IntN(4) == 0 {
		c.Faults.Damaged = 1 + r.IntN(400>>r.IntN(4))
	}
}

// outputWritten keeps the content of a new file of an output. When the file is a commit marker, outputWritten may
// damage the output: in half of these cases at once, before any task reads the output.
func (w *world) outputWritten(key string) {
	if w.cfg.Faults.Damaged == 0 && w.cfg.Merging == 0 {
		return
	}
	for _, d := range w.domains {
		if prefix, _ := merged.AssetOf(d, key); prefix != "" {
			w.mergedWritten(d, prefix, key)
			return
		}
	}
	data, _, err := w.blobs.Get(context.Background(), key)
	if err != nil {
		panic(fmt.Sprintf("sim: %v", err)) // cannot happen: the store is in memory
	}
	if key != contract.CommitMarkerKeyOf(key) && contract.IsMarker(key) {
		return // the file belongs to an output in quarantine
	}
	if !contract.IsMarker(key) {
		if w.made[key] == nil {
			w.made[key] = data
		}
		return
	}
	r := random(w.cfg.Seed, "damage "+key, 0)
	marker, err := contract.DecodeCommitMarker(data)
	if err != nil || len(marker.Files) == 0 || r.IntN(1000) >= w.cfg.Faults.Damaged {
		return
	}
	file, wait := marker.URI+marker.Files[r.IntN(len(marker.Files))].Name, time.Duration(0)
	if r.IntN(2) == 0 {
		wait = time.Duration(r.Int64N(int64(maxUndamaged)))
	}
	w.callAfter(wait, nil, func() { w.damageOutput(r, key, file) })
}

// damageOutput damages a file of an output. Half of the time, an operator restores it later.
func (w *world) damageOutput(r *rand.Rand, marker, key string) {
	ctx := context.Background()
	data, _, err := w.blobs.Get(ctx, key)
	if err != nil || w.faults.over() { // the output was collected, or faults have stopped
		return
	}
	how := w.damageObject(r, key, data)
	w.damaged[key] = true
	w.fault("output damaged: " + how)
	if r.IntN(2) == 0 {
		w.callAfter(time.Duration(r.Int64N(int64(maxUnrestored))), nil, func() { w.restoreOutput(marker, key) })
	}
}

// damageObject changes or deletes an object, and returns the kind of the damage.
func (w *world) damageObject(r *rand.Rand, key string, data []byte) (how string) {
	ctx := context.Background()
	how = []string{"bit flipped", "truncated", "replaced", "deleted"}[r.IntN(4)]
	switch how {
	case "bit flipped":
		data[r.IntN(len(data))] ^= 1 << r.IntN(8)
	case "truncated":
		data = data[:r.IntN(len(data))]
	case "replaced":
		data = bytes.Repeat([]byte("x"), len(data)+r.IntN(2))
	}
	var err error
	if how == "deleted" {
		err = w.blobs.Delete(ctx, key)
	} else {
		_, err = w.blobs.Put(ctx, key, data)
	}
	if err != nil {
		panic(fmt.Sprintf("sim: %v", err)) // cannot happen: the store is in memory
	}
	w.note("%s is damaged: %s", key, how)
	return how
}

// restoreOutput restores a damaged file, unless its output was collected.
func (w *world) restoreOutput(marker, key string) {
	ctx := context.Background()
	if _, err := w.blobs.Head(ctx, marker); err != nil {
		return
	}
	if _, err := w.blobs.Put(ctx, key, w.made[key]); err != nil {
		panic(fmt.Sprintf("sim: %v", err)) // cannot happen: the store is in memory
	}
	w.fault("output restored")
	w.note("%s is restored", key)
}

// sound reports whether a file of an output is unchanged since it was written.
func (w *world) sound(key string) bool {
	data, _, err := w.blobs.Get(context.Background(), key)
	return err == nil && bytes.Equal(data, w.made[key])
}

// lost reports whether an output has no files because they were damaged.
func (w *world) lost(blobs blob.Store, uri string) bool {
	for _, err := range blobs.List(context.Background(), blob.ListOptions{Prefix: uri}) {
		if err == nil { // cannot fail: the store is in memory
			return false
		}
	}
	for key := range w.damaged {
		if strings.HasPrefix(key, uri) {
			return true
		}
	}
	return false
}

// damagedIn returns a damaged file that a message names, or "".
func (w *world) damagedIn(message string) string {
	for _, word := range wordsOf(message) {
		if w.damaged[word] {
			return word
		}
	}
	return ""
}

// wordsOf returns the words of a message, such as the names of objects.
func wordsOf(message string) []string {
	return strings.FieldsFunc(message, func(r rune) bool { return strings.ContainsRune(" :\"", r) })
}

// readInputs reads the input files of a task, as a query or a command would, and lets the oracle compare their
// content with the written content.
func (w *world) readInputs(p *process, e worker.Execution) error {
	if w.cfg.Faults.Damaged == 0 {
		return nil
	}
	files, err := e.Files()
	if err != nil {
		return err
	}
	contents := make([][]byte, len(files))
	for i, f := range files {
		if contents[i], err = os.ReadFile(f.Path); err != nil {
			return err
		}
	}
	k := &call{proc: p, label: fmt.Sprintf("inputs of %s %s/%d", e.RunID, e.TaskKey, e.Attempt)}
	k.begin = func() {
		for i, f := range files {
			w.oracle.checkInput(e, f.Key, contents[i])
		}
		close(k.done)
	}
	return w.park(context.Background(), k)
}

// checkInput checks that a task has read the committed content of an input file.
func (o *oracle) checkInput(e worker.Execution, key string, content []byte) {
	o.w.counts["input files read"]++
	if !bytes.Equal(content, o.w.made[key]) {
		o.violation("damaged outputs", "attempt %d of task %s of run %s reads %s, which is damaged", e.Attempt, e.TaskKey, e.RunID, key)
	}
}

// checkRefusedInputs checks attempts that failed because an input was invalid or missing: the error must name a damaged
// file. In worlds with collectors, it may instead name a missing file, because the file may have been collected.
func (o *oracle) checkRefusedInputs(f *followed) {
	if o.w.cfg.Faults.Damaged == 0 {
		return
	}
	for a := range f.state.Attempts.All {
		refused := a.ErrorCode == worker.CodeInvalidInput || a.ErrorCode == worker.CodeMissingInput
		switch {
		case !refused:
		case o.w.damagedIn(a.ErrorMessage) != "":
			o.w.fault("damaged input refused")
		case a.ErrorCode == worker.CodeMissingInput && o.raced(f.state.Runs.Get(a.RunID), a.ErrorCode, a.ErrorMessage):
			o.w.fault("input of a retry collected after planning")
		case a.ErrorCode == worker.CodeInvalidInput || o.w.cfg.Collectors == 0:
			o.violation("damaged outputs", "attempt %d of task %s of run %s fails without naming a damaged file: %s %s",
				a.Attempt, a.TaskKey, a.RunID, a.ErrorCode, a.ErrorMessage)
		}
	}
}

// damagedOutput is an output with a damaged file.
type damagedOutput struct {
	line string // the line in the report of a verification, without the reason
	kept bool   // the retention keeps the run of the output

	visible bool // the partition shows the output
}

// damagedOutputs returns all damaged outputs. A verification must report an output if its field kept is true. It need
// not report the other outputs: their runs have expired, and a merge of the history may have dropped them.
func (o *oracle) damagedOutputs(f *followed) []damagedOutput {
	var found []damagedOutput
	for t := range f.state.Tasks.All {
		if t.State != state.TaskSucceeded || t.OutputURI == "" {
			continue
		}
		data, _, err := o.w.blobs.Get(context.Background(), contract.CommitMarkerKeyOf(t.OutputURI))
		if err != nil {
			continue // collected
		}
		marker, err := contract.DecodeCommitMarker(data)
		if err != nil {
			o.violation("INV-4 effects once", "the commit marker of %s: %v", t.OutputURI, err)
			continue
		}
		visible := visible(f.state, t)
		for _, file := range marker.Files {
			if key := t.OutputURI + file.Name; !o.w.sound(key) {
				line := fmt.Sprintf("output of task %s of run %s: file %s ", t.TaskKey, t.RunID, key)
				found = append(found, damagedOutput{line, t.RunID >= f.manifest.BaseSnapshot.RunsFrom, visible})
			}
		}
	}
	return found
}

// visible reports whether a partition shows the output of a task, and no person has marked the partition as missing.
func visible(s *state.State, t *state.Task) bool {
	row := s.Partitions.Get(state.Key2{A: t.AssetKey, B: t.PartitionKey})
	return row != nil && row.MaterializationID == t.MaterializationID && !s.Hidden(row)
}

// rest is the last line of a truncated list of problems.
const rest = "…"

// mayLeaveOut reports whether a report may lack a damaged output because a list is truncated. A truncated list of
// problems ends with the line "…". The list of superseded outputs, which never contains a visible output, is truncated
// if the report counts more outputs than the list contains.
func mayLeaveOut(report *repair.Report, visible bool) bool {
	return slices.Contains(report.Problems, rest) || !visible && report.SupersededOutputs > len(report.Superseded)
}

// otherProblems checks that a verification reports every damaged output with the name of its file, and no intact
// output. It returns the other problems.
func (o *oracle) otherProblems(f *followed, report repair.Report) []string {
	if o.w.cfg.Faults.Damaged == 0 {
		return report.Problems
	}
	damaged := o.damagedOutputs(f)
	names := func(problem string) bool {
		return slices.ContainsFunc(damaged, func(d damagedOutput) bool { return strings.HasPrefix(problem, d.line) })
	}
	must := 0
	lines := slices.Concat(report.Problems, report.Superseded)
	for _, d := range damaged {
		if !d.kept {
			continue
		}
		must++
		among := lines
		if d.visible {
			among = report.Problems
		}
		reported := slices.ContainsFunc(among, func(problem string) bool { return strings.HasPrefix(problem, d.line) })
		if !reported && !mayLeaveOut(&report, d.visible) {
			o.violation("damaged outputs", "verify does not report: %s", d.line)
		}
	}
	if report.BadOutputs < must || report.BadOutputs > len(damaged) {
		o.violation("damaged outputs", "verify counts %d damaged outputs of %s, want at least %d", report.BadOutputs, f.domain, must)
	}
	o.w.counts["damaged outputs reported"] += report.BadOutputs
	return slices.DeleteFunc(slices.Clone(report.Problems), func(problem string) bool {
		return names(problem) || problem == rest && must > 0
	})
}

// maybeUnsummed returns the store of the world. In every second world, this store keeps no checksums, like a folder.
func (w *world) maybeUnsummed() blob.Store {
	if w.cfg.Faults.Damaged%2 == 0 {
		return w.blobs
	}
	return unsummed{w.blobs}
}

// unsummed is a store without checksums.
type unsummed struct{ blob.Store }

func (u unsummed) Head(ctx context.Context, key string) (blob.Object, error) {
	object, err := u.Store.Head(ctx, key)
	object.CRC32C = 0
	return object, err
}
