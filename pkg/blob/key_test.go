package blob_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
)

func TestValidateKeyAcceptsPortableKeys(t *testing.T) {
	for _, key := range []string{
		"a",
		"ledger/orchestration/tenant=acme/workspace=main/01JHZZ.json",
		"assets/x/y/date=2025-01-15/region=a%2Fb#c:d e",
		"a/..b/...", "-", "é/日本/😀",
		strings.Repeat("s", blob.MaxSegmentBytes),
		strings.Repeat("s/", blob.MaxKeyBytes/2-1) + "ss",
	} {
		require.NoError(t, blob.ValidateKey(key), "%q", key)
	}
}

func TestValidateKeyRejectsUnportableKeys(t *testing.T) {
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/../b", "../a",
		"a\x00b", "a\nb", "a\x7fb", "a\u0085b", "a\xffb",
		".servo-tmp", ".servo-tmp/lock", "a/.servo-tmpx/b",
		strings.Repeat("s", blob.MaxSegmentBytes+1),
		strings.Repeat("s/", blob.MaxKeyBytes/2) + "s",
	} {
		require.ErrorIs(t, blob.ValidateKey(key), blob.ErrInvalid, "%q", key)
	}
}

func TestCRC32CIsCastagnoli(t *testing.T) {
	require.Equal(t, uint32(0xe3069283), blob.CRC32C([]byte("123456789")), "check value of CRC-32C")
	require.Zero(t, blob.CRC32C(nil))
}
