package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

func TestBuildListsPartitionColumns(t *testing.T) {
	date := []space.Column{{Name: "date", Type: "DATE"}}
	build := func(change func([]plan.Asset)) *plan.Plan {
		assets := weather()
		change(assets)
		return build(t, plan.Request{Root: "/p", Assets: assets, All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
	}
	p := build(func([]plan.Asset) {})
	require.Equal(t, map[string][]space.Column{"clean/daily": date, "clean/smooth": date}, p.PartitionColumns)
	retried, err := plan.Retry(p, []string{"analytics/monthly"}, map[string]plan.Input{
		"clean/daily[date=2012-01-02]": {MaterializationID: "M", URI: "u"}, "clean/daily[date=2012-01-03]": {MaterializationID: "N", URI: "v"},
		"analytics/records": {MaterializationID: "O", URI: "w"},
	})
	require.NoError(t, err)
	require.Equal(t, p.PartitionColumns, retried.PartitionColumns)

	off := build(func(assets []plan.Asset) {
		for i := range assets {
			assets[i].NoPartitionColumns = assets[i].Key == ids.AssetKey{Namespace: "clean", Name: "daily"}
		}
	})
	require.Equal(t, map[string][]space.Column{"clean/smooth": date}, off.PartitionColumns)
	before, err := p.Fingerprint()
	require.NoError(t, err)
	after, err := off.Fingerprint()
	require.NoError(t, err)
	require.Equal(t, before, after, "the columns change no stored output of the asset")
}

func TestValidateRejectsPartitionColumns(t *testing.T) {
	for _, bad := range []space.Column{{Name: `a" b`, Type: "DATE"}, {Name: "a", Type: "DATE) FROM x"}, {Name: "", Type: "DATE"}} {
		p := build(t, plan.Request{Root: "/p", Assets: weather(), All: true, Partitions: selection(t, "date=2012-01-02")})
		p.PartitionColumns = map[string][]space.Column{"clean/daily": {bad}}
		require.ErrorContains(t, p.Validate(), "asset clean/daily has the partition column")
	}
}
