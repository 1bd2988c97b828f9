package worker

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// A failed merge of one tenant must not delay merges of another tenant's asset with the same key.
func TestMergesOfDomainsAreSeparate(t *testing.T) {
	w := &Worker{mergeAfter: map[domainAsset]time.Time{}}
	w.cfg.Clock = clock.System{}
	sales := ids.AssetKey{Namespace: "mart", Name: "sales"}
	one := domainAsset{ids.Domain{Tenant: "acme", Workspace: "prod"}, sales}
	two := domainAsset{ids.Domain{Tenant: "globex", Workspace: "prod"}, sales}
	release := w.startMerge(one)
	require.NotNil(t, release)
	require.Nil(t, w.startMerge(one), "a merge of this asset is running")
	other := w.startMerge(two)
	require.NotNil(t, other)
	other(nil)
	release(errors.New("the disk is full"))
	require.Nil(t, w.startMerge(one), "the last merge has just failed")
	require.NotNil(t, w.startMerge(two))
}
