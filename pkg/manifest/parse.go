package manifest

import (
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// ParseKey returns the domain and revision in a manifest's object key.
func ParseKey(key string) (ids.Domain, int64, error) {
	rest, ok := strings.CutPrefix(key, manifests)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 { //nolint:mnd // tenant, workspace, revision
		return ids.Domain{}, 0, fmt.Errorf("key %.400q is not a manifest key", key)
	}
	tenant, ok1 := strings.CutPrefix(parts[0], "tenant=")
	workspace, ok2 := strings.CutPrefix(parts[1], "workspace=")
	d := ids.Domain{Tenant: tenant, Workspace: workspace}
	if !ok1 || !ok2 || d.Validate() != nil {
		return ids.Domain{}, 0, fmt.Errorf("key %.400q is not a manifest key", key)
	}
	revision, err := parseRevision(Prefix(d), key)
	return d, revision, err
}
