package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

// table is the result in Markdown: a row each, then what each takes when it is idle, who
// has which version and settings, and what could not be measured.
func (r *report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Machine)
	timed := slices.DeleteFunc(slices.Clone(r.Workloads), func(name string) bool { return name == work.Idle })
	if len(timed) > 0 {
		r.timed(&b, timed)
	}
	if len(timed) < len(r.Workloads) {
		r.atRest(&b)
	}
	for _, p := range r.Peers {
		if p.Version == "" {
			continue
		}
		fmt.Fprintf(&b, "- %s (`%s`): %s; %s", p.Title, p.Name, p.Version, p.Server)
		for _, name := range sortedKeys(p.Settings) {
			fmt.Fprintf(&b, "; %s %s", name, p.Settings[name])
		}
		b.WriteString("\n")
	}
	for _, p := range r.Peers {
		failed := map[string][]string{} // workloads by reason
		for _, workload := range r.Workloads {
			switch f := p.Figures[workload]; {
			case f.Failed != "":
				failed[f.Failed] = append(failed[f.Failed], fmt.Sprintf("%s after %d samples", workload, len(f.Samples)))
			case f.Repeated > 0:
				fmt.Fprintf(&b, "- %s, %s: %d tasks were executed more than once\n", p.Title, workload, f.Repeated)
			}
		}
		for _, why := range sortedKeys(failed) {
			fmt.Fprintf(&b, "- not measured: %s, %s: %s\n", p.Title, strings.Join(failed[why], ", "), why)
		}
	}
	for _, line := range notToBeHad() {
		fmt.Fprintf(&b, "- not measured: %s\n", line)
	}
	return b.String()
}

// timed is the table of workloads whose tasks are counted.
func (r *report) timed(b *strings.Builder, workloads []string) {
	b.WriteString("| | worker | durability |")
	for _, workload := range workloads {
		fmt.Fprintf(b, " %s, %s |", workload, unitOf(workload))
	}
	fmt.Fprintf(b, " flushes a task: %s |\n|%s\n", strings.Join(workloads, ", "), strings.Repeat(" --- |", 4+len(workloads)))
	for _, p := range r.Peers {
		fmt.Fprintf(b, "| %s | %s | %s |", p.Title, p.Worker, p.Durability)
		var flushes []string
		for _, workload := range workloads {
			f := p.Figures[workload]
			fmt.Fprintf(b, " %s |", f.cell())
			flushes = append(flushes, f.flushed())
		}
		fmt.Fprintf(b, " %s |\n", strings.Join(flushes, ", "))
	}
	b.WriteString("\nMedian (min–max).\n\n")
}

// atRest is the table of what is taken for nothing.
func (r *report) atRest(b *strings.Builder) {
	runs := number(float64(r.Idle.Runs))
	fmt.Fprintf(b, "| %s, idle, %s finished runs | PSS, MiB | CPU, %% of a core | PSS by program, MiB |\n|%s\n",
		work.Idle, runs, strings.Repeat(" --- |", 4)) //nolint:mnd // columns
	for _, p := range r.Peers {
		i := p.Figures[work.Idle].Idle
		if i == nil {
			fmt.Fprintf(b, "| %s | not measured | not measured | |\n", p.Title)
			continue
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", p.Title, mebibytes(i.PSS), number(i.CPU), strings.Join(i.parts(), ", "))
	}
	fmt.Fprintf(b, "\nOne sample each, of %s, from %s after the last run has ended: PSS in its end. Server and program (`peers`, `node`) count, with all "+
		"processes that they have started, and CPU also of those of these that have ended meanwhile. They have just executed the runs; Servo's one process, "+
		"which executes tasks, too, was started on a store that has them.\n\n", r.Idle.For, r.Idle.Rest)
}

// notToBeHad are peers that a comparison should have, and why it has not.
func notToBeHad() []string {
	return []string{
		"DBOS for Go: its module was not served where this was written; DBOS for TypeScript has its place",
		"go-workflows: its module was not served where this was written",
	}
}

func unitOf(workload string) string {
	if workload == "W1" {
		return "ms a hop"
	}
	return "tasks/s"
}

func (f *figures) cell() string {
	if len(f.Samples) == 0 {
		return "not measured"
	}
	text := number(f.Median)
	if len(f.Samples) > 1 {
		text += fmt.Sprintf(" (%s–%s)", number(slices.Min(f.Samples)), number(slices.Max(f.Samples)))
	}
	return text
}

func (f *figures) flushed() string {
	if f.Flushes == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2g", f.Flushes)
}

// number has three digits, or all before the point, these in threes.
func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%d,%03d", int(v+0.5)/1000, int(v+0.5)%1000)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
