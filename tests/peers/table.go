package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

// table returns the result in Markdown: the workloads, idle peers, versions and settings, and
// failed measurements.
func (r *report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Machine)
	timed := slices.DeleteFunc(slices.Clone(r.Workloads), func(name string) bool { return name == work.Idle })
	if len(timed) > 0 {
		r.timedTable(&b, timed)
	}
	if len(timed) < len(r.Workloads) {
		r.idleTable(&b)
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
		failed := map[string][]string{} // failed workloads, by reason
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
	for _, line := range unavailable() {
		fmt.Fprintf(&b, "- not measured: %s\n", line)
	}
	return b.String()
}

// timedTable writes the table of all workloads except the idle one.
func (r *report) timedTable(b *strings.Builder, workloads []string) {
	b.WriteString("| | worker | durability |")
	for _, workload := range workloads {
		fmt.Fprintf(b, " %s, %s |", workload, unitOf(workload))
	}
	fmt.Fprintf(b, " flushes per task: %s |\n|%s\n", strings.Join(workloads, ", "), strings.Repeat(" --- |", 4+len(workloads)))
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

// idleTable writes the table of idle peers.
func (r *report) idleTable(b *strings.Builder) {
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
	fmt.Fprintf(b, "\nOne sample each of %s, starting %s after the end of the last run; PSS at the end. The figures include server and program "+
		"(`peers`, `node`) and all their child processes; the CPU time includes that of ended processes. Peers have just executed the runs. Servo's single process, "+
		"which also executes tasks, was started on a store with these runs.\n\n", r.Idle.For, r.Idle.Rest)
}

// unavailable lists peers that are missing from the comparison, with the reason.
func unavailable() []string {
	return []string{
		"DBOS for Go: its module was not available; DBOS for TypeScript is measured instead",
		"go-workflows: its module was not available",
	}
}

func unitOf(workload string) string {
	if workload == "W1" {
		return "ms per hop"
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

// number formats a value with three significant digits, and large values as integers with a
// thousands separator.
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
