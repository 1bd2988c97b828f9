package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
)

func TestARefusedRebuildNamesEveryFolderThatACopyNeeds(t *testing.T) {
	d := ids.Domain{Tenant: "acme", Workspace: "prod"}
	message := errRebuildInBucket("gs://b", d).Error()
	down, up, ok := strings.Cut(message, "rebuild there")
	require.True(t, ok)
	folder := func(key string) string { return " " + key[:strings.Index(key, "/")+1] }
	for _, key := range []string{
		ledger.Prefix(d), archive.Prefix(d), plan.Ref(d, "x"), manifest.Prefix(d), manifest.PinPrefix(d), manifest.StatePrefix(d),
		manifest.BoundaryKey(d), manifest.HintKey(d),
	} {
		require.Contains(t, down, folder(key))
	}
	for _, key := range []string{manifest.StatePrefix(d), manifest.BoundaryKey(d), manifest.Prefix(d), manifest.HintKey(d)} {
		require.Contains(t, up, folder(key))
	}
	require.Contains(t, message, "pins/, state/, boundary/ and hints/ to a folder")
}
