package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// keyFlags are the flags that, together with the arguments, name the keys of a command.
type keyFlags struct {
	file string
	// If remove is true, the command removes the keys instead of adding them. If unknown is true, the command accepts a
	// key set that no asset names and that has no keys yet.
	remove, unknown bool
}

func (a *app) addKeysCommand() *cobra.Command {
	var f keyFlags
	cmd := &cobra.Command{
		Use:         "add SET [KEY…]",
		Annotations: writesDocument,
		Short:       "Add keys to a key set",
		Long: "Add keys to a key set. Keys that the set has already are ignored. If a key was removed before, its\n" +
			"partitions are back with their outputs.",
		Example: "  servo partitions add tenants acme globex\n  servo partitions add tenants --file tenants.txt",
		Args:    takes("SET", "[KEY…]"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.changeKeys(cmd.Context(), args, &f) },
	}
	cmd.Flags().StringVar(&f.file, "file", "", "also add the keys that this file lists, one per line; - is standard input")
	cmd.Flags().BoolVar(&f.unknown, "new", false, "accept a key set that no asset names and that has no keys yet")
	return cmd
}

func (a *app) removeKeysCommand() *cobra.Command {
	f := keyFlags{remove: true}
	cmd := &cobra.Command{
		Use:         "remove SET [KEY…]",
		Annotations: writesDocument,
		Short:       "Remove keys from a key set",
		Long: "Remove keys from a key set. Keys that the set lacks are ignored. The partitions of the removed keys keep\n" +
			"their outputs, but are no longer expected, selected or read.",
		Example: "  servo partitions remove tenants globex",
		Args:    takes("SET", "[KEY…]"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.changeKeys(cmd.Context(), args, &f) },
	}
	cmd.Flags().StringVar(&f.file, "file", "", "also remove the keys that this file lists, one per line; - is standard input")
	return cmd
}

// changeKeys adds keys to a key set, or removes them.
func (a *app) changeKeys(ctx context.Context, args []string, f *keyFlags) error {
	set, keys := args[0], args[1:]
	if f.file != "" {
		lines, err := a.linesOf(f.file)
		if err != nil {
			return err
		}
		keys = append(slices.Clone(keys), lines...)
	}
	if len(keys) == 0 {
		return usagef("no keys: name at least one, or a file with --file")
	}
	for _, key := range keys {
		if err := ids.CheckValue(key); err != nil {
			return &usageError{err}
		}
	}
	p, err := a.usableProject(ctx, func([]plan.Asset) ([]ids.AssetKey, error) { return nil, nil })
	if err != nil {
		return err
	}
	return a.do(ctx, p, func(ctx context.Context, s *session) error {
		snap, err := s.Current(ctx)
		if err != nil {
			return err
		}
		if err := knownSet(set, p, snap.State); err != nil && !f.unknown {
			return err
		}
		text, change := "added %s to %s, which now has %s\n", s.AddKeys
		if f.remove {
			text, change = "removed %s from %s, which now has %s\n", s.RemoveKeys
		}
		result, err := change(ctx, set, keys)
		if err != nil {
			return err
		}
		return a.document(result, func() string {
			return fmt.Sprintf(text, plural(result.Added+result.Removed, "key"), set, plural(result.Keys, "key"))
		})
	})
}

// linesOf returns the lines of a file or of standard input, without blank ones.
func (a *app) linesOf(file string) ([]string, error) {
	var data []byte
	var err error
	if file == "-" {
		data, err = io.ReadAll(a.Stdin)
	} else {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	const byteOrderMark = "\ufeff" // some editors write it at the start of a file
	var lines []string
	for line := range strings.Lines(strings.TrimPrefix(string(data), byteOrderMark)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// knownSet returns an error for a key set that no asset of a project names, and that has no keys.
func knownSet(set string, p *project.Project, s *state.State) error {
	known := map[string]bool{}
	for name := range setsOf(p.Assets) {
		known[name] = true
	}
	for _, has := range s.ListKeySets() {
		known[has.Name] = true
	}
	if known[set] {
		return nil
	}
	advice := "check its name, or add the first key of a new set with --new"
	if near := plan.Suggest(set, slices.Sorted(maps.Keys(known))); near != "" {
		advice = "did you mean " + near + "? Or add the first key of a new set with --new"
	}
	return fmt.Errorf("key set %s: no asset has a dimension {dynamic: %s}, and the set has no keys: %s", set, set, advice)
}

// setsOf returns, for each key set, the assets that name it.
func setsOf(assets []plan.Asset) map[string][]string {
	found := map[string][]string{}
	for i := range assets {
		if assets[i].Partitions == nil {
			continue
		}
		for _, d := range assets[i].Partitions.Dimensions {
			if d.Kind == space.Dynamic {
				found[d.Set] = append(found[d.Set], assets[i].Key.String())
			}
		}
	}
	return found
}

// keySetRow is a key set with the assets that name it.
type keySetRow struct {
	state.KeySet
	assets []string
}

var keySetColumns = []column[keySetRow]{
	{Name: "key_set", Value: func(r keySetRow) any { return r.Name }},
	{Name: "keys", Value: func(r keySetRow) any { return r.Keys }, Text: func(r keySetRow) any { return number(view.Grouped(int64(r.Keys))) }},
	{Name: "removed", Value: func(r keySetRow) any { return r.Removed }, Text: func(r keySetRow) any { return number(view.Grouped(int64(r.Removed))) }},
	{Name: "assets", Value: func(r keySetRow) any { return cells(r.assets) }, Text: func(r keySetRow) any { return words(r.assets, 0) }},
}

var keyColumns = []column[string]{{Name: "key", Value: func(key string) any { return key }}}

func (a *app) keySetsCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "sets [SET]",
		Annotations: writesRows,
		Short:       "List the key sets, or the keys of one",
		Example:     "  servo partitions sets\n  servo partitions sets tenants",
		Args:        takes("[SET]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := a.usableProject(cmd.Context(), func([]plan.Asset) ([]ids.AssetKey, error) { return nil, nil })
			if err != nil {
				return err
			}
			s, err := a.current(cmd.Context(), p)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				if err := knownSet(args[0], p, s); err != nil {
					return err
				}
				return list(a, keyColumns, s.Keys(args[0]))
			}
			return list(a, keySetColumns, keySetRows(p, s))
		},
	}
}

// keySetRows returns the key sets that have keys or that assets name, sorted by name.
func keySetRows(p *project.Project, s *state.State) []keySetRow {
	assets := setsOf(p.Assets)
	var rows []keySetRow
	for _, set := range s.ListKeySets() {
		rows = append(rows, keySetRow{set, assets[set.Name]})
		delete(assets, set.Name)
	}
	for name, of := range assets {
		rows = append(rows, keySetRow{state.KeySet{Name: name}, of})
	}
	slices.SortFunc(rows, func(a, b keySetRow) int { return strings.Compare(a.Name, b.Name) })
	return rows
}
