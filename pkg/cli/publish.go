package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/publisher"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
)

// releaseCache keeps the release that was read last.
type releaseCache struct {
	mu      sync.Mutex
	sha     string
	release *release.Release
	code    *release.Code
}

// read returns a release of a domain.
func (c *releaseCache) read(ctx context.Context, w *embedded.Workspace, sha string) (*release.Release, *release.Code, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sha == sha {
		return c.release, c.code, nil
	}
	r, code, err := engine.ReadRelease(ctx, w.Store, w.Domain, sha)
	if err != nil {
		return nil, nil, err
	}
	c.sha, c.release, c.code = sha, r, code
	return r, code, nil
}

// publishedAs describes an asset for a publisher, with the partitions that readers of the asset
// see.
func publishedAs(a *plan.Asset, calendar plan.Calendar, name string, copies bool) (publisher.Asset, error) {
	members, err := calendar.Members(a.Partitions)
	if err != nil {
		return publisher.Asset{}, fmt.Errorf("asset %s: %w", a.Key, err)
	}
	to := publisher.Asset{Key: a.Key.String(), Name: name, Copy: copies, Has: members.Has}
	if a.Partitions != nil {
		for _, d := range a.Partitions.Dimensions {
			to.Dimensions = append(to.Dimensions, d.Name)
		}
	}
	return to, nil
}

// exportedAs describes published assets for a catalog: a DuckDB file with a view for each asset.
func exportedAs(assets []publisher.Asset, columns map[string][]space.Column) []query.Exported {
	views := make([]query.Exported, len(assets))
	for i := range assets {
		views[i] = query.Exported{View: assets[i].Name, Columns: columns[assets[i].Key]}
		for _, out := range assets[i].Outputs {
			views[i].Outputs = append(views[i].Outputs, query.ExportedOutput(out))
		}
	}
	return views
}

// columnsOf returns the partition columns of assets. The values of these columns come from the keys of the partitions.
func columnsOf(assets []plan.Asset) map[string][]space.Column {
	columns := map[string][]space.Column{}
	for i := range assets {
		columns[assets[i].Key.String()] = assets[i].PartitionColumns()
	}
	return columns
}

// publishing returns a function that reads the deployed release of a snapshot. The function returns the places where the
// release publishes, and the assets that it publishes there.
func (a *app) publishing(p *project.Project, dir string) embedded.Publishing {
	var cache releaseCache
	return func(ctx context.Context, w *embedded.Workspace, snap *snapshot.Snapshot) ([]publisher.Place, []publisher.Asset, error) {
		sha := snap.State.Release()
		if sha == "" {
			return nil, nil, nil
		}
		r, code, err := cache.read(ctx, w, sha)
		if err != nil || r.Publish == nil {
			return nil, nil, err
		}
		calendar := view.Calendar(snap.State, a.Clock.Now())
		var assets []publisher.Asset
		for i := range code.Assets {
			asset := &code.Assets[i]
			if asset.Publish == nil {
				continue
			}
			to, err := publishedAs(asset, calendar, asset.Publish.Name, asset.Publish.Copy)
			if err != nil {
				return nil, nil, err
			}
			assets = append(assets, to)
		}
		return a.places(p, dir, r.Publish, sha, columnsOf(code.Assets)), assets, nil
	}
}

// places returns the places that a release names.
func (a *app) places(p *project.Project, dir string, named *release.Places, sha string, columns map[string][]space.Column) []publisher.Place {
	var places []publisher.Place
	if named.Folder != "" {
		folder := publisher.Folder{Path: inProject(p, named.Folder), Name: named.Folder, Store: dir}
		folder.Owner = a.ownerOf(p, dir, folder.Path, publisher.KindPublish)
		places = append(places, publisher.Place{Name: named.Folder, Record: filepath.Join(folder.Path, publisher.RecordName), Update: folder.Update})
	}
	if named.DuckDB != "" {
		catalog := publisher.Catalog{File: inProject(p, named.DuckDB), Name: named.DuckDB, Store: dir, Definition: sha}
		catalog.Owner = a.ownerOf(p, dir, filepath.Dir(catalog.File), publisher.KindPublish)
		catalog.Write = func(ctx context.Context, assets []publisher.Asset, revision int64, now event.Time) error {
			checked := filecheck.Open(filepath.Join(dir, checkedFile))
			defer func() { _ = checked.Save() }() // an error does not matter, because the file is only a cache
			_, err := query.Export(ctx, query.Catalog{
				Outputs: dir, Assets: exportedAs(assets, columns), Checked: checked, Revision: revision, At: now.Time(), Empty: true,
			}, catalog.File)
			return err
		}
		places = append(places, publisher.Place{Name: named.DuckDB, Record: publisher.RecordOf(catalog.File), Update: catalog.Update})
	}
	return places
}

// inProject returns the absolute path of a place of a project.
func inProject(p *project.Project, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(p.Root, filepath.FromSlash(name))
}

// ownerOf returns the owner record of a folder: the domain and the state folder of the outputs that the folder shows.
func (a *app) ownerOf(p *project.Project, dir, folder, kind string) publisher.Owner {
	state, err := filepath.Rel(folder, dir)
	if err != nil {
		state = dir
	}
	return publisher.Owner{Kind: kind, Domain: p.Domain.String(), State: filepath.ToSlash(state)}
}

// warnUnpublished warns if published places of a domain do not show the newest outputs.
func (a *app) warnUnpublished(dir string, d ids.Domain) {
	places, err := publisher.ReadStatus(dir, d.String())
	if err != nil {
		return // `servo status` reports the error
	}
	for _, s := range places {
		if s.Error != "" {
			a.warn("outputs are not published: %s", view.OneLine(s.Error))
		}
	}
}

// publishedPlaces returns the published places of a domain. It warns if their record is damaged. If a place belongs
// to another checkout of the project, its name is its absolute path.
func (a *app) publishedPlaces(dir string, d ids.Domain) ([]publisher.Status, error) {
	places, err := publisher.ReadStatus(dir, d.String())
	if damaged := new(publisher.DamagedError); errors.As(err, &damaged) {
		a.warn("%s", damaged)
		return nil, nil
	}
	if root, rootErr := a.projectDir(); rootErr == nil {
		for i := range places {
			if at := places[i].Path(); at != inProject(&project.Project{Root: root}, places[i].Name) {
				places[i].Name = at
			}
		}
	}
	return places, err
}

// publishedTexts describes the places where an asset is published.
func (a *app) publishedTexts(dir string, d ids.Domain, asset string, now time.Time) (texts []string, err error) {
	places, err := a.publishedPlaces(dir, d)
	if err != nil {
		return nil, err
	}
	for _, s := range places {
		name, ok := s.Assets[asset]
		if !ok {
			continue
		}
		texts = append(texts, placeText(&s, name, now))
	}
	return texts, nil
}

// placeText describes a published place. If name is not empty, placeText also says where the place shows the asset of
// this name.
func placeText(s *publisher.Status, name string, now time.Time) string {
	place := s.Name
	switch {
	case name == "":
	case filepath.Base(s.Record) == publisher.RecordName && filepath.Ext(filepath.Dir(s.Record)) == ".links":
		place += " (" + dotted(name) + ")"
	default:
		place = filepath.ToSlash(filepath.Join(s.Name, name))
	}
	switch at := event.At(now); {
	case s.Error != "":
		return fmt.Sprintf("%s has been out of date for %s: %s", place, view.Span(at.Sub(s.FailingSince)), cmp.Or(view.OneLine(s.Error), "unknown error"))
	case s.Revision == 0:
		return place + ", not written yet"
	default:
		return fmt.Sprintf("%s, at revision %s, %s ago", place, view.Grouped(s.Revision), view.Span(at.Sub(s.UpdatedAt)))
	}
}

// dotted returns the name of the table of an asset: namespace.name.
func dotted(key string) string {
	parsed, err := ids.ParseAssetKey(key)
	if err != nil {
		return key
	}
	return parsed.SQL()
}
