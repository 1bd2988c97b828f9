package repair

import (
	"context"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// withoutManifest reports a domain that has no manifest. A new domain has no other
// objects either; any other domain has lost its manifests, or has never published what is
// in its ledger.
func (cfg Config) withoutManifest(ctx context.Context) (Report, error) {
	report := Report{}
	var found []string
	for _, prefix := range []string{
		ledger.Prefix(cfg.Domain), archive.Prefix(cfg.Domain), manifest.StatePrefix(cfg.Domain), manifest.PinPrefix(cfg.Domain),
		manifest.HintKey(cfg.Domain),
	} {
		exists, err := cfg.anyObject(ctx, prefix)
		if err != nil {
			return report, err
		}
		if exists {
			found = append(found, prefix)
		}
	}
	if len(found) > 0 {
		report.NoManifest = true
		report.Problems = []string{fmt.Sprintf("%s has no manifest, although objects exist under %s: either all manifests were deleted, or nothing was ever published",
			manifest.Prefix(cfg.Domain), strings.Join(found, " and "))}
	}
	return report, nil
}

// anyObject reports whether the store has an object under a prefix.
func (cfg Config) anyObject(ctx context.Context, prefix string) (bool, error) {
	for _, err := range cfg.Store.List(ctx, blob.ListOptions{Prefix: prefix}) {
		if err != nil {
			return false, fmt.Errorf("list objects under %s: %w", prefix, err)
		}
		return true, nil
	}
	return false, nil
}
