package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

// steps is a clock whose Sleep advances the time without waiting and calls the next function of todo.
type steps struct {
	now  time.Time
	todo []func()
}

func (s *steps) Now() time.Time { return s.now }

func (s *steps) Sleep(_ context.Context, d time.Duration) error {
	if len(s.todo) == 0 {
		return errors.New("nothing more to do")
	}
	s.now = s.now.Add(d)
	s.todo[0]()
	s.todo = s.todo[1:]
	return nil
}

func TestWatchReportsChangedFiles(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("servo.yaml", "name: a")
	write("assets/a/one.sql", "SELECT 1")
	changes := 0
	var after []int
	look := func(change func()) func() {
		return func() {
			after = append(after, changes)
			change()
		}
	}
	clock := &steps{todo: []func(){
		look(func() {}),
		look(func() { write("assets/a/one.sql", "SELECT 1 AS x") }),
		look(func() { write("data/other.csv", "not of the project's declarations") }),
		look(func() { write("assets/b/two.sql", "SELECT 2") }),
		look(func() { require.NoError(t, os.Remove(filepath.Join(root, "assets/a/one.sql"))) }),
		look(func() { write("servo.yaml", "name: other") }),
		look(func() { write("schedules/nightly.yaml", "nightly: {}") }),
		look(func() {}),
	}}
	a := &app{Env: Env{Clock: clock}}
	err := a.watch(t.Context(), root, func() error { return nil }, func() []string { return nil }, func(context.Context) error { changes++; return nil })
	require.EqualError(t, err, "nothing more to do")
	require.Equal(t, []int{0, 0, 1, 1, 2, 3, 4, 5}, after)
}

func TestReloadDescribesChangedAssets(t *testing.T) {
	of := func(queries map[string]string) *project.Project {
		p := &project.Project{}
		for _, name := range []string{"one", "two", "three"} {
			if sql, ok := queries[name]; ok {
				p.Assets = append(p.Assets, plan.Asset{Key: ids.AssetKey{Namespace: "a", Name: name}, Work: plan.Work{SQL: sql}})
			}
		}
		return p
	}
	before := of(map[string]string{"one": "SELECT 1", "two": "SELECT 2"})
	require.Empty(t, difference(before, before))
	require.Equal(t, "; added: a/three; removed: a/one; changed: a/two",
		difference(before, of(map[string]string{"two": "SELECT 22", "three": "SELECT 3"})))
	scheduled := of(map[string]string{"one": "SELECT 1", "two": "SELECT 2"})
	scheduled.Schedules = []event.Schedule{{Name: "nightly", Cron: "@daily"}}
	require.Equal(t, "; added: schedule nightly", difference(before, scheduled))
	require.Equal(t, "; removed: schedule nightly", difference(scheduled, before))
}
