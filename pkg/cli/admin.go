package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

func (a *app) adminCommand() *cobra.Command {
	admin := &cobra.Command{
		Use:   "admin",
		Short: "Maintain the state: verify, rebuild, compact, sweep, inspect",
		Args:  a.noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	admin.AddCommand(a.verifyCommand(), a.rebuildCommand(), a.skipCommand(), a.compactCommand(),
		a.sweepCommand(), a.manifestCommand(), a.ledgerCommand(), a.sqlCommand(), a.gcCommand(), a.mergeCommand(),
		a.pinCommand(), a.duCommand())
	return admin
}

// withParts opens the state folder and calls f.
func (a *app) withParts(ctx context.Context, f func(*project.Project, *embedded.Workspace) error) error {
	p, err := a.settings()
	if err != nil {
		return err
	}
	parts, err := a.parts(ctx, p)
	if err != nil {
		return err
	}
	return errors.Join(f(p, parts), parts.Close())
}

func (a *app) repairConfig(parts *embedded.Workspace) repair.Config {
	return repair.Config{
		Handle:  parts.Handle,
		Writer:  fmt.Sprintf("servo-rebuild/%d", os.Getpid()),
		Wakeups: parts.Folder == nil,
		Documents: func(ctx context.Context, st *state.State) ([]string, error) {
			return engine.DamagedDocuments(ctx, parts.Store, parts.Domain, st)
		},
	}
}

func (a *app) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "verify",
		Annotations: writesDocument,
		Short:       "Replay the ledger and compare it with the state; check every state file and output",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withParts(cmd.Context(), func(_ *project.Project, parts *embedded.Workspace) error {
				report, err := repair.Verify(cmd.Context(), a.repairConfig(parts))
				if err != nil {
					return err
				}
				if err := a.document(report, func() string { return verifyText(report) }); err != nil {
					return err
				}
				if len(report.Problems) > 0 {
					a.note("servo: %s", remedy(report))
					return errReported
				}
				return nil
			})
		},
	}
}

// remedy returns advice about the result of a verification. It suggests a rebuild only if the ledger is complete and
// only the state is wrong.
func remedy(r repair.Report) string {
	switch {
	case r.NoManifest:
		return "the state has no manifest, so there is nothing to compare with the ledger: restore manifests/ from a backup; or rebuild the state from the ledger alone with `servo admin rebuild --bare`; " +
			"if nothing has been published yet, run `servo admin compact`"
	case r.Lost > 0:
		return "the ledger has lost entries that the state has folded, or their plans: restore them under ledger/, archive/ or plans/ from a backup, or in a bucket with `gcloud storage restore`; " +
			"the state still contains their events, which a rebuild would lose"
	case r.Differences == 0 && r.BadDocuments > 0:
		return "a plan, a release or the list of partitions of a backfill is missing or damaged: restore the file from a backup; or run the assets of the plan again, " +
			"store the release again with `servo deploy`, or cancel the backfill and create another one"
	case r.Differences == 0:
		return "outputs differ from what was committed: restore them under assets/, or recreate them with `servo run ASSET`; a rebuild does not restore them"
	}
	return "the state differs from the ledger: run `servo admin rebuild`"
}

func verifyText(r repair.Report) string {
	var text strings.Builder
	fmt.Fprintf(&text, "revision %d: replayed %s of the ledger (%s), compared %s, checked %s\n", r.Revision,
		plural(r.Groups, "group"), plural(int(r.Events), "event"), plural(int(r.Rows), "row"), plural(r.Outputs, "output"))
	for _, problem := range r.Problems {
		fmt.Fprintf(&text, "  %s\n", problem)
	}
	if r.Revision == 0 && len(r.Problems) == 0 {
		return "nothing to verify: the domain has no objects yet\n"
	}
	for _, problem := range r.Superseded {
		fmt.Fprintf(&text, "  superseded: %s\n", problem)
	}
	if more := r.SupersededOutputs - len(r.Superseded); more > 0 {
		fmt.Fprintf(&text, "  superseded: … and %d more\n", more)
	}
	switch {
	case len(r.Problems) == 0 && r.SupersededOutputs == 0:
		text.WriteString("no differences\n")
	case len(r.Problems) == 0:
		fmt.Fprintf(&text, "no differences in the state and in current outputs. Damaged: %s, superseded by newer outputs and not read by any unfinished run.\n"+
			"`servo query --as-of` and `servo retry` of earlier runs may still read the damaged files, and then report the damage. The setting `keep` determines when they are deleted\n",
			plural(r.SupersededOutputs, "output"))
	}
	return text.String()
}

func (a *app) rebuildCommand() *cobra.Command {
	var bare, forget bool
	cmd := &cobra.Command{
		Use:         "rebuild",
		Annotations: writesDocument,
		Short:       "Rebuild the state from the ledger beside the live state, then switch to it",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withParts(cmd.Context(), func(_ *project.Project, parts *embedded.Workspace) error {
				cfg := a.repairConfig(parts)
				cfg.Bare, cfg.AllowLoss = bare, forget
				result, err := repair.Rebuild(cmd.Context(), cfg)
				if err != nil {
					return rebuildError(err)
				}
				return a.document(result, func() string { return rebuildText(result) })
			})
		},
	}
	cmd.Flags().BoolVar(&bare, "bare", false, "if the recorded order of events is lost, replay the ledger in the order of its entries: this keeps every reported fact, but decisions may differ")
	cmd.Flags().BoolVar(&forget, "forget", false, "rebuild even if the ledger has lost entries: tasks whose results are lost run again")
	return cmd
}

// rebuildError adds advice to the error of a rebuild. A rebuild that fails changes nothing.
func rebuildError(err error) error {
	if lost, ok := errors.AsType[*repair.LostError](err); ok {
		return fmt.Errorf("%w\nrestore them under ledger/, archive/ or plans/ from a backup, or in a bucket with `gcloud storage restore`; or rebuild without them with --forget", lost)
	}
	if record, ok := errors.AsType[*repair.RecordError](err); ok {
		return fmt.Errorf("rebuild in the recorded order: %w: restore manifests/ and state/ from a backup; "+
			"or rebuild in the order of entries with --bare: this keeps every reported fact, but decisions that depend on timers and limits may differ", record)
	}
	return err
}

func rebuildText(r repair.Result) string {
	how := "in the recorded order: the state is the same as before"
	switch {
	case !r.Recorded && r.Lost > 0:
		how = "in the order of its entries, without " + plural(r.Lost, "lost group")
	case !r.Recorded:
		how = "in the order of its entries: every reported fact is kept, and no finished task runs again"
	case r.Lost > 0:
		how = "in the recorded order, without " + plural(r.Lost, "lost group")
	}
	return fmt.Sprintf("revision %d: %s from %s of the ledger, replayed %s\n", r.Revision, plural(int(r.Rows), "row"), plural(r.Groups, "group"), how)
}

func (a *app) compactCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "compact",
		Annotations: writesDocument,
		Short:       "List the ledger and fold all entries that are not folded yet",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withSession(cmd.Context(), func(ctx context.Context, s *session) error {
				result, err := s.CatchUp(ctx)
				if err != nil {
					return err
				}
				return a.document(result, func() string {
					return fmt.Sprintf("revision %d: %s folded; caught up at %s\n", result.Revision, plural(result.Folded, "group"), result.CaughtUpAt) + unreadText(result.Unreadable)
				})
			})
		},
	}
}

func (a *app) sweepCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sweep",
		Short: "Run anti-entropy now: find lost dispatches, unannounced entries, and timers that never fired",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withSession(cmd.Context(), func(ctx context.Context, s *session) error {
				if s.stack != nil { // when this process became the owner, it folded all entries and refilled the queue
					if err := s.stack.Sweep(ctx); err != nil {
						return err
					}
				} else if _, err := s.CatchUp(ctx); err != nil {
					return err
				}
				snap, err := s.Current(ctx)
				if err != nil {
					return err
				}
				if s.stack == nil {
					a.note("the ledger is folded; %s sweeps the queue every minute", s.executor())
				}
				a.note("revision %d: %s in progress", snap.Revision, plural(snap.State.LiveRuns(), "run"))
				return nil
			})
		},
	}
}

// withSession opens a session on an existing state folder and calls f.
func (a *app) withSession(ctx context.Context, f func(context.Context, *session) error) error {
	var p *project.Project
	err := a.withParts(ctx, func(settings *project.Project, _ *embedded.Workspace) error {
		p = settings
		return nil
	})
	if err != nil {
		return err
	}
	return a.do(ctx, p, f)
}

func (a *app) manifestCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "manifest [REVISION|TIME]",
		Annotations: writesRows,
		Short:       "Show the manifest of a revision: its watermarks and files (default: the newest)",
		Args:        takes("[REVISION|TIME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withParts(cmd.Context(), func(_ *project.Project, parts *embedded.Workspace) error {
				m, err := revision(cmd.Context(), parts, optional(args))
				switch {
				case err != nil:
					return err
				case m == nil:
					return fmt.Errorf("no revision has been published in %s yet; start a run with `servo run --all`", parts.Domain)
				case a.format == render.CSV:
					history, err := parts.Manifests.HistoryFiles(cmd.Context(), m)
					if err != nil {
						return err
					}
					return list(a, fileColumns, placed(m, history))
				}
				return a.document(m, func() string { return a.manifestText(m) })
			})
		},
	}
}

// placedFile is a file of a revision with its tier. The rows of each table inside the manifest also count as a file of
// the tier "inline".
type placedFile struct {
	manifest.File
	tier string
}

// tierInline is the tier of rows inside the manifest.
const tierInline = "inline"

// placed returns the files of a revision with their tiers.
func placed(m *manifest.Manifest, history []manifest.File) []placedFile {
	var files []placedFile
	add := func(tier string, fs []manifest.File) {
		for _, f := range fs {
			files = append(files, placedFile{f, tier})
		}
	}
	add(manifest.TierBase, m.BaseSnapshot.Files)
	for _, d := range m.L1 {
		add(manifest.TierL1, d.Files)
	}
	for _, d := range m.L0 {
		add(manifest.TierL0, d.Files)
		for _, r := range d.Inline {
			add(tierInline, []manifest.File{{Table: r.Table, Rows: r.Count, Size: int64(len(r.JSON)), CRC32C: r.CRC32C}})
		}
	}
	add(manifest.TierHistory, history)
	return files
}

var fileColumns = []column[placedFile]{
	{Name: "table", Value: func(f placedFile) any { return f.Table }},
	{Name: "tier", Value: func(f placedFile) any { return f.tier }},
	{Name: "rows", Value: func(f placedFile) any { return f.Rows }},
	{Name: "bytes", Value: func(f placedFile) any { return f.Size }},
	{Name: "crc32c", Value: func(f placedFile) any { return f.CRC32C }},
	{Name: "key", Value: func(f placedFile) any { return f.Key }},
}

// manifestText formats a manifest for people.
func (a *app) manifestText(m *manifest.Manifest) string {
	t := &sheet{style: a.style, width: 18}
	t.field("revision", "%s of %s, published %s by %s", a.style.bold(fmt.Sprint(m.Revision)), m.Domain(), m.PublishedAt, m.Writer)
	t.field("timeline", "%s", m.Timeline)
	t.field("events folded", "%s, the last at %s", view.Grouped(m.FoldSeq), m.FoldTime)
	t.field("complete through", "%s", m.Watermarks.CompleteThrough)
	t.field("caught up at", "%s", m.Watermarks.CaughtUpAt)
	t.field("base", "%s", tierText(m.BaseSnapshot.Files))
	inline, files := manifest.SplitInline(m.L0)
	t.field("l1", "%s", deltasText(m.L1))
	t.field("l0", "%s", deltasText(files))
	t.field("in the manifest", "%s", deltasText(inline))
	closed := int64(0)
	for _, index := range m.History {
		closed += index.Rows
	}
	t.field("history", "%s", plural(int(closed), "row"))
	name := "rows"
	for _, table := range tableNames() {
		if n, ok := m.RowCounts[table]; ok {
			t.field(name, "%s  %s", pad(table, 20), view.Grouped(n))
			name = ""
		}
	}
	return t.String()
}

func tierText(files []manifest.File) string {
	rows, size := int64(0), int64(0)
	for _, f := range files {
		rows += f.Rows
		size += f.Size
	}
	return fmt.Sprintf("%s, %s, %s", plural(len(files), "file"), plural(int(rows), "row"), bytesText(size))
}

func deltasText(deltas []manifest.Delta) string {
	var files []manifest.File
	rows, size := int64(0), int64(0)
	for _, d := range deltas {
		files = append(files, d.Files...)
		rows += d.Rows
		size += d.Bytes
	}
	return fmt.Sprintf("%s: %s, %s, %s", plural(len(deltas), "delta"), plural(len(files), "file"), plural(int(rows), "row"), bytesText(size))
}

func (a *app) sqlCommand() *cobra.Command {
	var asOf string
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print SQL that defines the views of a revision, for any DuckDB",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withParts(cmd.Context(), func(p *project.Project, parts *embedded.Workspace) error {
				m, err := revision(cmd.Context(), parts, asOf)
				if err != nil {
					return err
				}
				places := &placer{parts: parts}
				if parts.Folder == nil {
					places.remote = a.options(p).Dir
				}
				tables, err := tables(cmd.Context(), places, m)
				if err != nil {
					return err
				}
				for _, t := range tables {
					for _, f := range t.Files {
						if _, err := os.Stat(f.Path); errors.Is(err, fs.ErrNotExist) && parts.Folder != nil {
							return fmt.Errorf("the revision's file %s is missing: run `servo admin rebuild`", filepath.Base(f.Path))
						}
					}
				}
				script, err := query.Script(tables)
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(a.Stdout, script)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&asOf, "as-of", "", "the state as of a revision or a time (RFC 3339)")
	return cmd
}
