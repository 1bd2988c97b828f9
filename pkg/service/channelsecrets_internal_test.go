package service

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/secret"
)

func TestChannelSecretsAreSeparatedByCommas(t *testing.T) {
	from := func(_ context.Context, reference string) (string, error) { return reference, nil }
	allowed, err := config{ChannelSecrets: "gcp:projects/p/secrets/a-*, acme=gcp:projects/p/secrets/b"}.allowed()
	require.NoError(t, err)
	for reference, ok := range map[string]bool{"gcp:projects/p/secrets/a-1": true, "gcp:projects/p/secrets/b": true, "gcp:projects/p/secrets/c": false} {
		_, err := allowed.Only("acme", from)(t.Context(), reference)
		require.Equal(t, ok, err == nil, reference)
	}
	_, err = allowed.Only("globex", from)(t.Context(), "gcp:projects/p/secrets/b")
	require.ErrorIs(t, err, secret.ErrRefused, "of another tenant")

	none, err := config{}.allowed()
	require.NoError(t, err)
	_, err = none.Only("acme", from)(t.Context(), "gcp:projects/p/secrets/a-1")
	require.ErrorIs(t, err, secret.ErrRefused)
	_, err = config{ChannelSecrets: "gcp:projects/p/secrets/a,"}.allowed()
	require.ErrorContains(t, err, `--channel-secrets ""`)
}
