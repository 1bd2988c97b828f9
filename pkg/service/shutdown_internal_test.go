package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Cloud Run kills an instance 10 seconds after it has sent the signal to end.
func TestShutdownFitsIntoCloudRunsLimit(t *testing.T) {
	require.Less(t, drainTimeout+linger+flushTimeout, 10*time.Second)
}
