package notify

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckAddressRefusesPrivateAndLocal(t *testing.T) {
	// want says whether the address is allowed by default, and whether it is allowed with allow_private.
	for text, want := range map[string][2]bool{
		"93.184.216.34": {true, true}, "2606:2800:220:1::1": {true, true},
		"10.0.0.1": {false, true}, "172.31.255.1": {false, true}, "192.168.1.1": {false, true}, "127.0.0.1": {false, true}, "::1": {false, true},
		"100.64.0.1": {false, true}, "fd12::1": {false, true},
		"169.254.169.254": {false, false}, "fe80::1": {false, false}, "fe80::1%eth0": {false, false}, "0.0.0.0": {false, false}, "::": {false, false},
		"224.0.0.1": {false, false}, "255.255.255.255": {false, false}, "fd00:ec2::254": {false, false}, "fd20:ce::254": {false, false},
		"::ffff:169.254.169.254": {false, false}, "::ffff:10.0.0.1": {false, true},
		"64:ff9b::a9fe:a9fe": {false, false}, "64:ff9b::a00:1": {false, true}, "2002:a9fe:a9fe::1": {false, false},
	} {
		ip := netip.MustParseAddr(text)
		require.Equal(t, want[0], checkAddress(ip, false) == nil, text)
		require.Equal(t, want[1], checkAddress(ip, true) == nil, "%s with allow_private", text)
	}
}
