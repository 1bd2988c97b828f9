package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/project"
)

// usage is the result of servo admin du.
type usage struct {
	Parts []usedPart `json:"parts"`
	Files int        `json:"files"`
	Bytes int64      `json:"bytes"`
	// VisibleBytes is the size of the visible outputs, without their commit markers.
	VisibleBytes int64 `json:"visible_bytes"`
}

// usedPart is a part of the state, with a name for people.
type usedPart struct {
	Name  string `json:"part"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

// partNames are the parts of a state, each with the first folder in the path of its files. All other files belong to
// the part "other".
var partNames = []struct{ folder, name string }{
	{"assets", "outputs"},
	{"", "commit markers"}, // recognized by the names of the files, not by a folder
	{"", "merged files"},
	{"ledger", "ledger"},
	{"archive", "archive"},
	{"manifests", "manifests"},
	{"state", "state files"},
	{"plans", "plans"},
	{"logs", "logs"},
	{"releases", "releases"},
	{"code", "releases"},
	{"source", "releases"},
	{"scratch", "scratch"},
	{".servo-tmp", "journal"},
}

func (a *app) duCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "du",
		Annotations: writesDocument,
		Short:       "Show what uses space: outputs, ledger, manifests, logs and others",
		Long: "For each part of the state folder or the bucket, show the number and the size of its files. Sizes are sums of\n" +
			"file sizes; a disk allocates whole blocks. `servo admin gc --dry-run` shows what can be deleted.",
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withParts(cmd.Context(), func(p *project.Project, parts *embedded.Workspace) error {
				u, err := a.usage(cmd.Context(), p, parts)
				if err != nil {
					return err
				}
				return a.document(u, func() string { return usageText(u) })
			})
		},
	}
}

// usage adds up the sizes of files.
func (a *app) usage(ctx context.Context, p *project.Project, parts *embedded.Workspace) (*usage, error) {
	u := &usage{}
	var err error
	if parts.Folder != nil {
		err = u.walk(ctx, a.options(p).Dir)
	} else {
		for o, listErr := range parts.Store.List(ctx, blob.ListOptions{}) {
			if err = listErr; err != nil {
				break
			}
			u.add(o.Key, o.Size)
		}
	}
	if err != nil {
		return nil, err
	}
	snap, err := parts.Reader().Current(ctx)
	if err != nil {
		return nil, err
	}
	for row, err := range snap.AllPartitions(ctx) {
		if err != nil {
			return nil, err
		}
		if !snap.State.Hidden(row) {
			u.VisibleBytes += row.ByteSize
		}
	}
	u.sort()
	return u, nil
}

func (u *usage) walk(ctx context.Context, dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || !d.Type().IsRegular() {
			return ignoreMissing(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		relative, err := filepath.Rel(dir, name)
		u.add(filepath.ToSlash(relative), info.Size())
		return err
	})
}

// ignoreMissing returns nil for the error of a file that was deleted while the folder was read.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (u *usage) add(key string, size int64) {
	first, _, _ := strings.Cut(key, "/")
	name := "other"
	for _, part := range partNames {
		if part.folder == first {
			name = part.name
		}
	}
	const folder = 5 // assets, tenant, workspace, namespace, name
	if split := strings.Split(key, "/"); first == "assets" && len(split) > folder && split[folder] == "_merged" {
		name = "merged files"
	}
	if first == "assets" && contract.IsMarker(key) {
		name = "commit markers"
	}
	at := slices.IndexFunc(u.Parts, func(p usedPart) bool { return p.Name == name })
	if at < 0 {
		at = len(u.Parts)
		u.Parts = append(u.Parts, usedPart{Name: name})
	}
	u.Parts[at].Files++
	u.Parts[at].Bytes += size
	u.Files++
	u.Bytes += size
}

// sort puts the parts into the order of partNames.
func (u *usage) sort() {
	place := func(p usedPart) int {
		for i, part := range partNames {
			if part.name == p.Name {
				return i
			}
		}
		return len(partNames)
	}
	slices.SortFunc(u.Parts, func(a, b usedPart) int { return place(a) - place(b) })
}

func usageText(u *usage) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight) //nolint:mnd // spaces between columns
	fmt.Fprintln(table, "files\tbytes\t  part")
	for _, p := range u.Parts {
		fmt.Fprintf(table, "%s\t%s\t  %s\n", view.Grouped(int64(p.Files)), bytesText(p.Bytes), p.Name)
	}
	fmt.Fprintf(table, "%s\t%s\t  total\n", view.Grouped(int64(u.Files)), bytesText(u.Bytes))
	_ = table.Flush() // writing to memory cannot fail
	if u.VisibleBytes > 0 {
		fmt.Fprintf(&text, "\nvisible outputs have %s; the state has %.2f times as many bytes\n", bytesText(u.VisibleBytes), float64(u.Bytes)/float64(u.VisibleBytes))
	}
	return text.String()
}
