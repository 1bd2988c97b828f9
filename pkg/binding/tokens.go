package binding

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/oauth2"
	"google.golang.org/api/idtoken"

	"github.com/servo-orchestration/servo/pkg/identity"
)

// Tokens returns a source of ID tokens of this machine's service account, or of the account
// whose key file is configured. It caches each token until shortly before it expires.
func Tokens() identity.Source {
	var sources sync.Map
	return func(ctx context.Context, audience string) (string, error) {
		found, _ := sources.LoadOrStore(audience, &tokens{audience: audience})
		source, _ := found.(*tokens)
		return source.token(ctx)
	}
}

// tokens is the source for one audience.
type tokens struct {
	audience string

	mu   sync.Mutex
	from oauth2.TokenSource
}

// token returns a token, or an error when ctx ends: the token source does not take a context.
func (t *tokens) token(ctx context.Context) (string, error) {
	type answer struct {
		token string
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		token, err := t.get(context.WithoutCancel(ctx))
		answered <- answer{token, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case a := <-answered:
		return a.token, a.err
	}
}

func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.from == nil {
		made, err := idtoken.NewTokenSource(ctx, t.audience)
		if err != nil {
			return "", fmt.Errorf("find this machine's account: %w", err)
		}
		t.from = made
	}
	token, err := t.from.Token()
	if err != nil {
		return "", err
	}
	return token.AccessToken, nil
}
