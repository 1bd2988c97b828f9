package embedded

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// knowsPeers is true: Linux can tell which user opened a connection.
const knowsPeers = true

// socketOwner returns the id of the user who owns a socket on this machine: the socket that is bound to the address
// "local" and connected to the address "remote". It returns false if the kernel lists no such connection. It also
// returns false if the process has closed the connection, because the kernel then reports user 0.
func socketOwner(local, remote netip.AddrPort) (uid int, known bool) {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(table)
		if err != nil {
			continue
		}
		uid, known := findSocket(bufio.NewScanner(file), local, remote)
		_ = file.Close() // only read
		if known {
			return uid, true
		}
	}
	return 0, false
}

// Columns of /proc/net/tcp, and the state of an established connection.
const (
	columnLocal  = 1
	columnRemote = 2
	columnState  = 3
	columnUID    = 7
	columnInode  = 9
	established  = "01"
)

func findSocket(lines *bufio.Scanner, local, remote netip.AddrPort) (uid int, known bool) {
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= columnInode || fields[columnState] != established || fields[columnInode] == "0" ||
			!sameAddress(fields[columnLocal], local) || !sameAddress(fields[columnRemote], remote) {
			continue
		}
		uid, err := strconv.Atoi(fields[columnUID])
		return uid, err == nil
	}
	return 0, false
}

// sameAddress reports whether an address of /proc/net/tcp equals the address "want". The file contains the address as
// groups of four bytes in the machine's byte order, a colon and the port, all in hexadecimal.
func sameAddress(text string, want netip.AddrPort) bool {
	const word = 4
	digits, port, _ := strings.Cut(text, ":")
	if n, err := strconv.ParseUint(port, 16, 16); err != nil || uint16(n) != want.Port() {
		return false
	}
	raw, err := hex.DecodeString(digits)
	if err != nil || len(raw)%word != 0 {
		return false
	}
	for i := 0; i < len(raw); i += word {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	address, ok := netip.AddrFromSlice(raw)
	return ok && address.Unmap() == want.Addr().Unmap()
}
