package plan_test

import (
	"fmt"
	"testing"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

func BenchmarkTmpBuild(b *testing.B) {
	var assets []plan.Asset
	for i := range 1010 {
		a := plan.Asset{Key: ids.AssetKey{Namespace: "n", Name: fmt.Sprintf("a%04d", i)}}
		a.Work.SQL = "SELECT 1"
		if i%10 > 0 {
			a.Deps = []ids.AssetKey{assets[i-1].Key}
		}
		assets = append(assets, a)
	}
	r := plan.Request{Assets: assets}
	for i := range 10 {
		r.Select = append(r.Select, assets[i].Key)
	}
	for b.Loop() {
		if _, err := plan.Build(r); err != nil {
			b.Fatal(err)
		}
	}
}
