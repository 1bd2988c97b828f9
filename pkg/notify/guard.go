package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// timeout bounds one try, from the resolution of the name to the end of the answer.
const timeout = 10 * time.Second

// neverAllowed lists the addresses that no channel may use: unspecified, link-local, multicast and reserved addresses,
// and metadata servers.
var neverAllowed = prefixes("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "::/128", "fe80::/10", "ff00::/8", "fd00:ec2::/32", "fd20:ce::/32")

// privateRanges lists the addresses that only a channel with allow_private may use.
var privateRanges = prefixes("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "::1/128", "fc00::/7", "fec0::/10")

// Prefixes of IPv6 addresses that contain an IPv4 address: in the last bytes (nat64) or after the prefix (sixToFour).
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// errRefused reports that Servo refuses to call an address.
var errRefused = errors.New("address refused")

// checkAddress returns an error if a channel must not call an address.
func checkAddress(ip netip.Addr, allowPrivate bool) error {
	ip = ip.Unmap().WithZone("")
	bytes := ip.AsSlice()
	switch {
	case nat64.Contains(ip):
		return checkAddress(netip.AddrFrom4([4]byte(bytes[12:16])), allowPrivate)
	case sixToFour.Contains(ip):
		return checkAddress(netip.AddrFrom4([4]byte(bytes[2:6])), allowPrivate)
	}
	for _, p := range neverAllowed {
		if p.Contains(ip) {
			return fmt.Errorf("%w: %s is link-local, multicast or a metadata server", errRefused, ip)
		}
	}
	for _, p := range privateRanges {
		if p.Contains(ip) && !allowPrivate {
			return fmt.Errorf("%w: %s is private: add allow_private: true to the channel if that is intended", errRefused, ip)
		}
	}
	return nil
}

// dialer returns a dialer that checks each address after the name was resolved and before it connects.
func dialer(allowPrivate bool) *net.Dialer {
	return &net.Dialer{Timeout: timeout, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: %s is not an address", errRefused, address)
		}
		return checkAddress(to.Addr(), allowPrivate)
	}}
}

// client returns a client for one request. It follows no redirects. It uses no proxy, because a proxy would
// resolve names itself.
func client(allowPrivate bool) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer(allowPrivate).DialContext, TLSHandshakeTimeout: timeout, ResponseHeaderTimeout: timeout,
			MaxResponseHeaderBytes: MaxBytes, DisableKeepAlives: true, ForceAttemptHTTP2: true,
		},
	}
}
