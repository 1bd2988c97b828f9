package repair

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// withoutManifest returns the report about a domain without a manifest. A new domain has no objects at all. A domain
// with other objects has lost its manifests, or has never published a revision.
func (cfg Config) withoutManifest(ctx context.Context) (Report, error) {
	found, err := cfg.remains(ctx)
	if err != nil || len(found) == 0 {
		return Report{}, err
	}
	return Report{NoManifest: true, Problems: []string{
		fmt.Sprintf("%s has no manifest, although objects exist under %s: either all manifests were deleted, or nothing was ever published",
			manifest.Prefix(cfg.Domain), strings.Join(found, " and ")),
	}}, nil
}

// remains returns the prefixes of a domain under which objects exist, except the prefix of manifests.
func (cfg Config) remains(ctx context.Context) (found []string, err error) {
	for _, prefix := range []string{
		ledger.Prefix(cfg.Domain), archive.Prefix(cfg.Domain), manifest.StatePrefix(cfg.Domain), manifest.PinPrefix(cfg.Domain),
		manifest.HintKey(cfg.Domain), manifest.BoundaryKey(cfg.Domain),
	} {
		exists, err := cfg.anyObject(ctx, prefix)
		if err != nil {
			return nil, err
		}
		if exists {
			found = append(found, prefix)
		}
	}
	return found, nil
}

// errNothing reports that the domain is new.
var errNothing = errors.New("nothing to rebuild: the domain has no objects yet")

// rejectNewDomain returns an error if the domain is new, which means that it has no objects.
func (cfg Config) rejectNewDomain(ctx context.Context) error {
	found, err := cfg.remains(ctx)
	if err == nil && len(found) == 0 {
		return errNothing
	}
	return err
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
