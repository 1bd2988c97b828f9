package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// Domains lists the domains of a store. It finds a domain by its ledger or its manifests, and lists only one ledger
// object and one manifest of each domain.
func Domains(ctx context.Context, store blob.Store) ([]ids.Domain, error) {
	found := map[ids.Domain]bool{}
	for _, prefix := range []func(ids.Domain) string{ledger.Prefix, manifest.Prefix} {
		root := strings.TrimSuffix(prefix(ids.Domain{}), ids.Domain{}.Path()+"/")
		for after := ""; ; {
			key, err := first(ctx, store, root, after)
			if err != nil {
				return nil, err
			}
			if key == "" {
				break
			}
			folder, d := domainOf(root, key)
			if d.Validate() == nil {
				found[d] = true
			}
			// Continue after the folder. '0' is the character after '/', so all keys in the folder sort before folder + "0".
			// An object outside of such a folder may stand for a folder of domains: continue after this object.
			if after = key; folder != "" {
				after = folder + "0"
			}
		}
	}
	domains := make([]ids.Domain, 0, len(found))
	for d := range found {
		domains = append(domains, d)
	}
	slices.SortFunc(domains, func(a, b ids.Domain) int { return strings.Compare(a.String(), b.String()) })
	return domains, nil
}

// first returns the first key that has the given prefix and sorts after the given key. It returns "" if no such key
// exists.
func first(ctx context.Context, store blob.Store, prefix, after string) (string, error) {
	for object, err := range store.List(ctx, blob.ListOptions{Prefix: prefix, StartAfter: after}) {
		if err != nil {
			return "", fmt.Errorf("list domains: %w", err)
		}
		return object.Key, nil
	}
	return "", nil
}

// domainOf returns the domain to which a key belongs, and the folder of this domain without its last slash. If the key
// is not below the folder of a domain, the folder is "". For example, the console of Cloud Storage and gcsfuse create
// objects like "tenant=acme/", which stand for folders.
func domainOf(root, key string) (folder string, d ids.Domain) {
	tenant, rest, _ := strings.Cut(strings.TrimPrefix(key, root), "/")
	workspace, _, below := strings.Cut(rest, "/")
	if !below {
		return "", ids.Domain{}
	}
	name, isTenant := strings.CutPrefix(tenant, "tenant=")
	space, isWorkspace := strings.CutPrefix(workspace, "workspace=")
	if isTenant && isWorkspace {
		d = ids.Domain{Tenant: name, Workspace: space}
	}
	return root + tenant + "/" + workspace, d
}
