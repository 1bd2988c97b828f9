package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDollarsKeepsTwoDigits(t *testing.T) {
	for nano, want := range map[int64]string{
		0: "$0.00", 1: "$0.000000001", 24: "$0.000000024", 4_200_000: "$0.0042", 4_260_000: "$0.0043", 99_900_000: "$0.10",
		123_456_789: "$0.12", 999_000_000: "$1.00", 12_345_000_000: "$12.35", 1_234_567_000_000_000: "$1,234,567.00",
	} {
		require.Equal(t, want, dollars(nano), nano)
	}
}
