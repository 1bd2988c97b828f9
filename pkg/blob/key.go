package blob

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits on keys: those of Google Cloud Storage, and of the file systems that
// a directory store lies on.
const (
	// MaxKeyBytes is the length of the longest key.
	MaxKeyBytes = 1024
	// MaxSegmentBytes is the length of the longest part between two slashes.
	MaxSegmentBytes = 255
	// TempPrefix begins the names that a directory store keeps for itself: no
	// segment of a key may begin with it.
	TempPrefix = ".servo-tmp"
)

// ValidateKey reports, as ErrInvalid, why no store takes a key. A key is valid
// UTF-8 of 1 to [MaxKeyBytes] bytes without control characters, made of
// segments between single slashes; a segment has 1 to [MaxSegmentBytes] bytes,
// is neither "." nor "..", and does not begin with [TempPrefix].
//
// One more rule holds for keys together: no key is a folder of another, "a" of
// "a/b". A directory cannot hold both, and refuses the second with ErrInvalid;
// stores in the cloud would take it.
func ValidateKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrInvalid)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: %q… has %d bytes, the limit is %d", ErrInvalid, key[:64], len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: %q is not UTF-8", ErrInvalid, key)
	case strings.ContainsFunc(key, unicode.IsControl):
		return fmt.Errorf("%w: %q has a control character", ErrInvalid, key)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if reason := refuseSegment(segment); reason != "" {
			return fmt.Errorf("%w: %q has a segment %s", ErrInvalid, key, reason)
		}
	}
	return nil
}

// Check reports what keeps a store from calling for an object: an invalid key, or a
// context that has ended.
func Check(ctx context.Context, verb, key string) error {
	if err := ValidateKey(key); err != nil {
		return fmt.Errorf("%s object: %w", verb, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s object %q: %w", verb, key, err)
	}
	return nil
}

// refuseSegment says why a segment is not allowed; empty means that it is.
func refuseSegment(segment string) string {
	switch {
	case segment == "":
		return "that is empty: a slash leads, ends or follows another"
	case segment == ".", segment == "..":
		return fmt.Sprintf("%q", segment)
	case len(segment) > MaxSegmentBytes:
		return fmt.Sprintf("of %d bytes, the limit is %d", len(segment), MaxSegmentBytes)
	case strings.HasPrefix(segment, TempPrefix):
		return fmt.Sprintf("that begins with %q, which stores keep for themselves", TempPrefix)
	}
	return ""
}

// CRC32C is the Castagnoli checksum that [Object] carries.
func CRC32C(data []byte) uint32 {
	return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
}
