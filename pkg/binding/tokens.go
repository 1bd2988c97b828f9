package binding

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/oauth2"
	"google.golang.org/api/idtoken"

	"github.com/servo-orchestration/servo/pkg/identity"
)

// Tokens are the ID tokens of this machine's service account, or of the one whose
// key file is configured. They are kept until they are about to expire.
func Tokens() identity.Source {
	var mu sync.Mutex
	sources := map[string]oauth2.TokenSource{}
	source := func(ctx context.Context, audience string) (oauth2.TokenSource, error) {
		mu.Lock()
		defer mu.Unlock()
		if found := sources[audience]; found != nil {
			return found, nil
		}
		made, err := idtoken.NewTokenSource(context.WithoutCancel(ctx), audience)
		if err == nil {
			sources[audience] = made
		}
		return made, err
	}
	return func(ctx context.Context, audience string) (string, error) {
		from, err := source(ctx, audience)
		if err != nil {
			return "", fmt.Errorf("find this machine's account: %w", err)
		}
		token, err := from.Token()
		if err != nil {
			return "", err
		}
		return token.AccessToken, nil
	}
}
