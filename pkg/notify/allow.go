package notify

import (
	"context"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/secret"
)

// Allowed lists the secrets that the channels of releases may name. Without such a list, every person with permission
// to deploy could make the dispatcher send its secrets to a host that this person controls.
type Allowed []allowance

type allowance struct{ tenant, prefix string }

// ParseAllowed reads the values of --channel-secrets: [TENANT=]REFERENCE. A * at the end of REFERENCE matches any
// characters.
func ParseAllowed(texts []string) (Allowed, error) {
	var all Allowed
	for _, text := range texts {
		tenant, pattern, limited := strings.Cut(text, "=")
		if !limited {
			tenant, pattern = "", text
		}
		provider, name, ok := strings.Cut(pattern, ":")
		before, _ := strings.CutSuffix(name, "*")
		if !ok || provider == "" || before == "" || strings.Contains(before, "*") || limited && tenant == "" {
			return nil, fmt.Errorf("--channel-secrets %q: write gcp:projects/PROJECT/secrets/NAME, with a * only at its end, and optionally TENANT= before it", text)
		}
		all = append(all, allowance{tenant, pattern})
	}
	return all, nil
}

// Only wraps read: the returned function returns an error for a secret that the channels of the tenant may not use.
func (a Allowed) Only(tenant string, read func(ctx context.Context, reference string) (string, error)) func(context.Context, string) (string, error) {
	return func(ctx context.Context, reference string) (string, error) {
		for _, x := range a {
			prefix, open := strings.CutSuffix(x.prefix, "*")
			if (x.tenant == "" || x.tenant == tenant) && (reference == x.prefix || open && strings.HasPrefix(reference, prefix)) {
				return read(ctx, reference)
			}
		}
		return "", fmt.Errorf("%w: channels may not use the secret %s: allow it with the flag --channel-secrets of the dispatcher", secret.ErrRefused, reference)
	}
}
