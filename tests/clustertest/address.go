package clustertest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// FreeAddress returns an unused address of this machine. The port is outside of the ephemeral range, so that no
// outgoing connection uses it before the caller listens on it.
func FreeAddress(t *testing.T) string {
	t.Helper()
	const first, ports, tries = 15_000, 15_000, 100
	var err error
	for range tries {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(ports))) //nolint:gosec // no secret
		var l net.Listener
		if l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", address); err == nil {
			require.NoError(t, l.Close())
			return address
		}
	}
	require.NoError(t, err, "no free port in %d tries", tries)
	return ""
}
