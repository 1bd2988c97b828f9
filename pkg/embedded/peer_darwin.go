package embedded

import "net/netip"

// knowsPeers is false: macOS cannot tell which user opened a connection.
const knowsPeers = false

// socketOwner always returns false: macOS has no table that maps connections to users.
func socketOwner(netip.AddrPort, netip.AddrPort) (uid int, known bool) { return 0, false }
