package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

func (a *app) ledgerCommand() *cobra.Command {
	var f engine.Filter
	cmd := &cobra.Command{
		Use:         "ledger",
		Annotations: writesRows,
		Short:       "Print the events of the ledger and the outcome of folding them",
		Long: "Print events in the order of their entries. In a table, each event has one line with its outcome;\n" +
			"with -o json, each is printed as stored in the ledger, one per line.",
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.Limit < 1 {
				return usagef("--limit is %d; must be 1 or more", f.Limit)
			}
			if f.TaskKey != "" && f.RunID == "" {
				return usagef("--task needs a run: add --run RUN, for example --run latest")
			}
			if f.Entry != "" && !ids.Valid(f.Entry) {
				return usagef("invalid --entry %q: expected 26 letters and digits", f.Entry)
			}
			f.TaskKey = ids.StoredKey(f.TaskKey)
			return a.read(cmd.Context(), func(v published) error {
				var run *state.Run
				if f.RunID != "" {
					var err error
					if _, run, err = engine.FindRun(cmd.Context(), v.Snapshot, f.RunID); err != nil {
						return err
					}
					f.RunID = run.RunID
				}
				recorded, more, err := engine.Events(cmd.Context(), v.Store, v.State.Domain, run, f)
				if err != nil {
					return err
				}
				if err := a.events(cmd.Context(), v.Snapshot, recorded); err != nil {
					return err
				}
				if more {
					a.note("… more events: raise --limit")
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&f.RunID, "run", "", "only events of this run")
	cmd.Flags().StringVar(&f.TaskKey, "task", "", "with --run: only events of this task, and of the run as a whole")
	cmd.Flags().StringVar(&f.Entry, "entry", "", "only events of this entry")
	cmd.Flags().IntVar(&f.Limit, "limit", 1000, "maximum number of events to print")
	return cmd
}

// events writes events: as stored in the ledger, or one line each.
func (a *app) events(ctx context.Context, snap *snapshot.Snapshot, recorded []*engine.RecordedEvent) error {
	if a.format == render.JSON {
		for _, r := range recorded {
			line := r.Line
			if !json.Valid(line) {
				var err error
				if line, err = json.Marshal(map[string]string{"malformed": string(line), "entry": r.Entry}); err != nil {
					return fmt.Errorf("write event: %w", err)
				}
			}
			if _, err := fmt.Fprintf(a.Stdout, "%s\n", line); err != nil {
				return err
			}
		}
		return nil
	}
	infos := make([]view.EventInfo, len(recorded))
	for i, r := range recorded {
		infos[i] = r.Info()
	}
	if err := engine.Judge(ctx, snap, infos); err != nil {
		return err
	}
	return list(a, eventColumns, infos)
}

var eventColumns = []column[view.EventInfo]{
	{Name: "time", Value: func(e view.EventInfo) any { return moment(e.Time) }, Text: func(e view.EventInfo) any { return eventTime(e.Time) }},
	{Name: "type", Value: func(e view.EventInfo) any { return e.Type }},
	{Name: "outcome", Value: func(e view.EventInfo) any { return orNil(string(e.Outcome)) }},
	{Name: "reason", Value: func(e view.EventInfo) any { return orNil(e.Reason) }},
	{Name: "event_id", Machine: true, Value: func(e view.EventInfo) any { return e.EventID }},
	{Name: "entry", Value: func(e view.EventInfo) any { return e.Entry }},
	{Name: "group", Machine: true, Value: func(e view.EventInfo) any { return e.Group }},
	{Name: "actor", Machine: true, Value: func(e view.EventInfo) any { return orNil(e.Actor) }},
	{Name: "summary", Value: func(e view.EventInfo) any { return orNil(e.Summary) }, Text: func(e view.EventInfo) any { return view.OneLine(e.Summary) }},
}
