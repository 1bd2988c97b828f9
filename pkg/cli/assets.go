package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/selector"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// assetInfo is a declared asset with the number of its partitions.
type assetInfo struct {
	view.Asset
	of     int
	counts *engine.Counts // nil: not known
	usual  *typical       // nil: no task has succeeded
}

func staleCount(c *engine.Counts) int   { return c.Stale }
func missingCount(c *engine.Counts) int { return c.Missing }
func failedCount(c *engine.Counts) int  { return c.Failed }

// counted returns number(c), where c contains how many partitions of the asset have each status. It returns nil if the
// numbers are unknown.
func (i *assetInfo) counted(number func(*engine.Counts) int) any {
	if i.counts == nil {
		return nil
	}
	return number(i.counts)
}

func (i *assetInfo) countedText(of func(*engine.Counts) int) any {
	if i.counts == nil {
		return "?"
	}
	return number(view.Grouped(int64(of(i.counts))))
}

// listed returns the project and the assets to list. Without arguments, these are all assets. Assets with problems are
// included, because even these may have materializations.
func (a *app) listed(ctx context.Context, f *assetFlags, args []string) (p *project.Project, chosen selector.Result, err error) {
	f.all = f.all || len(args) == 0
	choice, err := f.parse(args)
	if err != nil {
		return p, chosen, err
	}
	p, err = a.definedProject(ctx, func(assets []plan.Asset) ([]ids.AssetKey, error) {
		chosen, err = choice.resolve(assets)
		return nil, err
	})
	return p, chosen, err
}

func (a *app) assetsCommand() *cobra.Command {
	var f assetFlags
	cmd := &cobra.Command{
		Use:         "assets [SELECTION…]",
		SuggestFor:  []string{"ls", "list"},
		Annotations: writesRows,
		Short:       "List the assets and their materializations",
		Example:     "  servo assets clean/daily\n  servo assets '+report/climate' --exclude tag:raw",
		Args:        takes("[SELECTION…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, chosen, err := a.listed(cmd.Context(), &f, args)
			if err != nil {
				return err
			}
			var infos []assetInfo
			err = a.withSnapshot(cmd.Context(), p, func(snap *snapshot.Snapshot) (err error) {
				infos, err = a.assetInfos(cmd.Context(), snap, p, chosen.Keys)
				return err
			})
			if err != nil {
				return err
			}
			if len(chosen.Keys) == 1 && len(chosen.Named) == 1 && a.table() {
				texts, err := a.dataTexts(cmd.Context(), p, chosen.Keys[0])
				if err != nil {
					return err
				}
				if _, err := fmt.Fprint(a.Stdout, a.assetText(&infos[0], texts)); err != nil {
					return err
				}
			} else if err := list(a, assetColumns, infos); err != nil {
				return err
			}
			for i := range infos {
				if infos[i].Broken != "" {
					a.warn("%s cannot be materialized, and its partitions have no status: %s: run `servo validate`", infos[i].Key, infos[i].Broken)
				}
			}
			return a.schemaChanges(cmd.Context(), p, infos)
		},
	}
	f.add(cmd, "list")
	cmd.AddCommand(a.forgetCommand())
	return cmd
}

// assetInfos returns the assets of a project that have the given keys.
func (a *app) assetInfos(ctx context.Context, snap *snapshot.Snapshot, p *project.Project, keys []ids.AssetKey) (infos []assetInfo, err error) {
	calendar := view.Calendar(snap.State, a.Clock.Now())
	count := a.counter(ctx, snap, p.Assets)
	for i := range p.Assets {
		asset := &p.Assets[i]
		if _, found := slices.BinarySearchFunc(keys, asset.Key, plan.CompareKeys); !found {
			continue
		}
		of, err := view.AssetOf(snap.Partitions(ctx, asset.Key.String(), ""), asset, calendar)
		if err != nil {
			return nil, fmt.Errorf("read the partitions of %s: %w", asset.Key, err)
		}
		usual, err := typicalOf(snap.State, asset.Key)
		if err != nil {
			return nil, err
		}
		info := assetInfo{Asset: of, of: view.PartitionCount(asset, calendar), usual: usual}
		if asset.Broken == "" {
			info.counts = count(asset.Key)
		}
		if info.counts != nil {
			info.of = info.counts.Total() // also counts outputs of periods that have not ended
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// current returns the newest live state, or an empty one if nothing was ever published.
func (a *app) current(ctx context.Context, p *project.Project) (*state.State, error) {
	var s *state.State
	err := a.withSnapshot(ctx, p, func(snap *snapshot.Snapshot) error {
		s = snap.State
		return nil
	})
	return s, err
}

// counter returns a function that counts the partitions of an asset by status. If the partitions of an asset cannot
// be evaluated, the function prints a warning and returns nil.
func (a *app) counter(ctx context.Context, snap *snapshot.Snapshot, assets []plan.Asset) func(ids.AssetKey) *engine.Counts {
	evaluation, err := engine.Staleness(ctx, snap, assets, a.Clock.Now())
	if err != nil {
		a.warn("cannot count fresh and stale partitions: %v", err)
		return func(ids.AssetKey) *engine.Counts { return nil }
	}
	byKey := make(map[string]*plan.Asset, len(assets))
	for i := range assets {
		byKey[assets[i].Key.String()] = &assets[i]
	}
	failures, err := engine.Failures(ctx, snap, byKey, view.Calendar(snap.State, a.Clock.Now()))
	if err != nil {
		a.warn("cannot count failed partitions: %v", err)
	}
	return func(key ids.AssetKey) *engine.Counts {
		counts, err := engine.FailedOf(failures, key).Count(evaluation, key)
		if err != nil {
			a.warn("cannot count the fresh and stale partitions of %s: %v", key, err)
			return nil
		}
		return &counts
	}
}

// schemaChanges warns of assets whose partitions have different columns.
func (a *app) schemaChanges(ctx context.Context, p *project.Project, infos []assetInfo) error {
	infos = slices.DeleteFunc(slices.Clone(infos), func(i assetInfo) bool { return len(i.Schemas) < 2 })
	if len(infos) == 0 {
		return nil
	}
	parts, err := a.parts(ctx, p)
	if err != nil {
		return err
	}
	for _, info := range infos {
		a.warnings(engine.AssetSchemas(ctx, parts.Folder, info.Schemas))
	}
	return parts.Close()
}

// unknownAsset returns the error for an unknown asset.
func unknownAsset(name string, known []string) error {
	hint := "`servo assets` lists them"
	if near := plan.Suggest(name, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	return fmt.Errorf("unknown asset %s: %s", name, hint)
}

// keepText describes the retention rule of an asset.
func keepText(k plan.Keep) string {
	if k.All {
		return "all versions of a partition"
	}
	rule := gc.Keep{Versions: k.Versions, For: k.For}.WithDefaults()
	if rule.Versions == 1 {
		return "the newest version of a partition; a superseded version for an hour"
	}
	age := rule.For.String()
	if day := 24 * time.Hour; rule.For%day == 0 {
		age = plural(int(rule.For/day), "day")
	}
	return fmt.Sprintf("the newest %d versions of a partition; a superseded version for at most %s", rule.Versions, age)
}

var assetColumns = []column[assetInfo]{
	{Name: "asset", Value: func(i assetInfo) any { return i.Key.String() }},
	{Name: "kind", Optional: true, Value: func(i assetInfo) any { return i.Kind() }},
	{Name: "partitions", Machine: true, Value: func(i assetInfo) any { return orNil(i.Partitioning()) }},
	{Name: "materialized", Value: func(i assetInfo) any { return i.Stored }, Text: func(i assetInfo) any {
		if i.Broken != "" {
			return number(view.Grouped(int64(i.Stored)) + " of ?")
		}
		return number(fmt.Sprintf("%s of %s", view.Grouped(int64(i.Stored)), view.Grouped(int64(i.of))))
	}},
	{Name: "of", Machine: true, Value: func(i assetInfo) any { return i.of }},
	{Name: "rows", Value: func(i assetInfo) any { return i.Rows }, Text: func(i assetInfo) any { return number(view.Grouped(i.Rows)) }},
	{Name: "bytes", Optional: true, Value: func(i assetInfo) any { return i.Bytes }, Text: func(i assetInfo) any { return number(bytesText(i.Bytes)) }},
	{Name: "fresh", Machine: true, Value: func(i assetInfo) any { return i.counted(func(c *engine.Counts) int { return c.Fresh }) }},
	{Name: "stale", Value: func(i assetInfo) any { return i.counted(staleCount) }, Text: func(i assetInfo) any { return i.countedText(staleCount) }},
	{Name: "missing", Value: func(i assetInfo) any { return i.counted(missingCount) }, Text: func(i assetInfo) any { return i.countedText(missingCount) }},
	{Name: "failed", Value: func(i assetInfo) any { return i.counted(failedCount) }, Text: func(i assetInfo) any { return i.countedText(failedCount) }},
	{Name: "schemas", Machine: true, Value: func(i assetInfo) any { return len(i.Schemas) }},
	{Name: "last_materialized_at", Optional: true, Value: func(i assetInfo) any { return moment(i.MaterializedAt) }, Text: func(i assetInfo) any { return stamp(i.MaterializedAt) }},
	{Name: "last_run_id", Machine: true, Value: func(i assetInfo) any { return orNil(i.LastRun) }},
	typicalColumn("samples", func(t *typical) any { return t.Samples }),
	typicalColumn("typical_seconds", func(t *typical) any { return t.Duration }),
	typicalColumn("typical_cpu_seconds", func(t *typical) any { return numberOrNil(t.CPU) }),
	typicalColumn("typical_rows", func(t *typical) any { return t.Rows }),
	typicalColumn("typical_bytes", func(t *typical) any { return t.Bytes }),
	{Name: "depends_on", Optional: true, Value: func(i assetInfo) any { return cells(i.DependsOn()) }, Text: func(i assetInfo) any { return words(i.DependsOn(), 0) }},
	{Name: "description", Machine: true, Value: func(i assetInfo) any { return orNil(i.Description) }},
	{Name: "file", Machine: true, Value: func(i assetInfo) any { return i.File }},
	{Name: "problem", Machine: true, Value: func(i assetInfo) any { return orNil(i.Broken) }},
}

// dataText says where the outputs of an asset are stored.
type dataText struct {
	stored    string // "": nowhere
	published []string
}

// dataTexts describes where the outputs of an asset are stored.
func (a *app) dataTexts(ctx context.Context, p *project.Project, key ids.AssetKey) (texts dataText, err error) {
	parts, err := a.parts(ctx, p)
	if errors.Is(err, fs.ErrNotExist) {
		return texts, nil
	}
	if err != nil {
		return texts, err
	}
	defer func() { err = errors.Join(err, parts.Close()) }()
	prefix := contract.AssetsPrefix(parts.Domain) + key.String()
	dir := a.stateOf(p)
	if parts.Folder == nil {
		texts.stored = dir + "/" + prefix
		return texts, nil
	}
	if texts.stored = filepath.Join(dir, filepath.FromSlash(prefix)); a.short(texts.stored) != "" {
		texts.stored = a.short(texts.stored)
	}
	if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(prefix))); err != nil {
		texts.stored = ""
	}
	texts.published, err = a.publishedTexts(dir, parts.Domain, key.String(), a.Clock.Now())
	return texts, err
}

// short returns a path relative to the working folder, or "" if the path is not below that folder.
func (a *app) short(name string) string {
	if rel, err := filepath.Rel(a.abs("."), name); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return ""
}

// assetText formats one asset for people.
func (a *app) assetText(i *assetInfo, data dataText) string {
	t := &sheet{style: a.style, width: 14}
	t.field("asset", "%s", a.style.bold(i.Key.String()))
	t.line("", view.OneLine(i.Description))
	t.field("declared in", "%s (%s)", i.File, i.Kind())
	t.line("depends on", words(i.DependsOn(), 0))
	t.line("partitions", i.Partitioning())
	of := plural(i.of, "partition")
	if i.Broken != "" {
		of = "? partitions"
	}
	t.field("materialized", "%s of %s, %s, %s", view.Grouped(int64(i.Stored)), of, plural(int(i.Rows), "row"), bytesText(i.Bytes))
	if i.counts != nil {
		text := fmt.Sprintf("%d fresh, %d stale, %d missing", i.counts.Fresh, i.counts.Stale, i.counts.Missing)
		if i.counts.Failed > 0 {
			text += fmt.Sprintf(", %d failed", i.counts.Failed)
		}
		t.field("status", "%s", text)
	}
	if len(i.Schemas) > 1 {
		t.field("schemas", "%d different", len(i.Schemas))
	}
	if i.MaterializedAt != 0 {
		t.field("last run", "%s by run %s", i.MaterializedAt.Time().Format(time.RFC3339), i.LastRun)
	}
	if i.usual != nil {
		t.field("one task", "%s", i.usual)
	}
	t.line("data", data.stored)
	for n, text := range data.published {
		t.field(firstOnly(n, "published"), "%s", text)
	}
	t.line("pool", i.Pool)
	if i.Retries.MaxAttempts > 1 {
		attempts := fmt.Sprintf("%d attempts", i.Retries.MaxAttempts)
		if !i.Retries.UserErrors {
			attempts += "; errors of the query or the command are not retried, because `retries` is not set"
		}
		t.field("retries", "%s", attempts)
	}
	if i.TimeoutSec > 0 {
		t.field("timeout", "%s", time.Duration(i.TimeoutSec)*time.Second)
	}
	t.field("keep", "%s", keepText(i.Keep))
	return t.String()
}
