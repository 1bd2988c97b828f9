package engine_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	releases "github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/source"
)

func compiled(t *testing.T, query string) *releases.Compiled {
	t.Helper()
	assets := []plan.Asset{{Key: ids.AssetKey{Namespace: "a", Name: "b"}, Work: plan.Work{SQL: query}}}
	releases.SetCodes(assets)
	c, err := releases.Compile(releases.Input{Assets: assets, Parser: "1"}, nil, nil)
	require.NoError(t, err)
	return c
}

func TestReleasesAreStoredOnceAndVerified(t *testing.T) {
	w := newFixture(t, false)
	c := compiled(t, "SELECT 1")
	archive := &source.Archive{SHA: strings.Repeat("a", 64), Data: []byte("x")}
	for range 2 {
		require.NoError(t, w.SaveRelease(t.Context(), c, archive))
	}
	r, code, err := w.ReadRelease(t.Context(), c.SHA)
	require.NoError(t, err)
	require.Equal(t, c.Release, r)
	require.Equal(t, c.Code, code)
	_, _, err = w.ReadRelease(t.Context(), strings.Repeat("b", 64))
	require.ErrorIs(t, err, blob.ErrNotFound)
	_, err = w.Store().Put(t.Context(), releases.CodeRef(w.Domain(), c.Release.Code), []byte("damaged"))
	require.NoError(t, err)
	_, _, err = w.ReadRelease(t.Context(), c.SHA)
	require.ErrorContains(t, err, "its code is damaged")
	require.NoError(t, w.SaveRelease(t.Context(), c, archive))
	_, _, err = w.ReadRelease(t.Context(), c.SHA)
	require.NoError(t, err, "storing it again repairs it")
}

// A create may succeed although its response is lost. A store may also deny a create because the object exists and the
// account may not overwrite objects. In both cases the release is stored.
func TestReleasesAreStoredDespiteErrors(t *testing.T) {
	w := newFixture(t, false)
	c := compiled(t, "SELECT 1")
	archive := &source.Archive{SHA: strings.Repeat("a", 64), Data: []byte("x")}
	for _, fault := range []faultblob.Fault{faultblob.FailAfter, faultblob.FailBefore} {
		w.faults(func(op faultblob.Op, _ string) faultblob.Fault {
			if op == faultblob.Create {
				return fault
			}
			return faultblob.None
		})
		require.NoError(t, w.SaveRelease(t.Context(), c, archive))
	}
	require.Error(t, w.SaveRelease(t.Context(), compiled(t, "SELECT 2"), archive), "not stored")
}

// TestRacingDeploymentsConflict deploys two releases at once. Both expect the same current release.
func TestRacingDeploymentsConflict(t *testing.T) {
	w := newFixture(t, false)
	first, err := w.Deploy(t.Context(), engine.DeployRequest{Release: compiled(t, "SELECT 0").SHA, Kind: event.DeployRelease})
	require.NoError(t, err)
	var mu sync.Mutex
	var all sync.WaitGroup
	made, conflicts := 0, 0
	for _, query := range []string{"SELECT 1", "SELECT 2", "SELECT 3"} {
		sha := compiled(t, query).SHA
		all.Go(func() {
			_, err := w.Deploy(t.Context(), engine.DeployRequest{Release: sha, Expects: first.Release, Kind: event.DeployRelease})
			mu.Lock()
			defer mu.Unlock()
			if _, conflict := errors.AsType[*engine.ReleaseConflictError](err); conflict {
				conflicts++
			} else if err == nil {
				made++
			} else {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 1, made)
	require.Equal(t, 2, conflicts)
}

// TestRacingDeploymentsOfOneReleaseSucceed deploys a release several times at once, as servo deploy and servo dev do
// after a change of the project's files.
func TestRacingDeploymentsOfOneReleaseSucceed(t *testing.T) {
	w := newFixture(t, false)
	sha := compiled(t, "SELECT 1").SHA
	var all sync.WaitGroup
	var made [4]engine.Deployment
	for i := range made {
		all.Go(func() {
			var err error
			made[i], err = w.Deploy(t.Context(), engine.DeployRequest{Release: sha, Kind: event.DeployRelease})
			assert.NoError(t, err)
		})
	}
	all.Wait()
	for _, d := range made {
		require.Equal(t, made[0], d, "one of them has deployed the release")
	}
	require.Equal(t, sha, made[0].Release)
}
