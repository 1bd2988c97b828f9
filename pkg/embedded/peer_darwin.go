package embedded

import "net/netip"

// socketOwner knows nobody: this system has no table of connections with their users.
func socketOwner(netip.AddrPort, netip.AddrPort) (uid int, known bool) { return 0, false }
