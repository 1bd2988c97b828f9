package blob

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of keys, from Google Cloud Storage and from the file systems of directory stores.
const (
	// MaxKeyBytes is the length of the longest key.
	MaxKeyBytes = 1024
	// MaxSegmentBytes is the length of the longest segment between two slashes.
	MaxSegmentBytes = 255
	// TempPrefix is the prefix of the names that a directory store reserves for itself. No segment of a key may begin
	// with it.
	TempPrefix = ".servo-tmp"
)

// ValidateKey returns nil for a key that stores accept. For any other key it returns an ErrInvalid with the reason. A
// valid key is UTF-8 of 1 to [MaxKeyBytes] bytes without control characters, made of segments between single slashes.
// A segment has 1 to [MaxSegmentBytes] bytes, is neither "." nor "..", and does not begin with [TempPrefix].
//
// A further rule applies to pairs of keys: no key may be a folder of another key, as "a" is of "a/b". A store in a
// directory cannot contain both and rejects the second key with ErrInvalid; cloud stores would accept it.
func ValidateKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrInvalid)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: %q… is %d bytes long, the limit is %d", ErrInvalid, key[:64], len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: %q is not valid UTF-8", ErrInvalid, key)
	case strings.ContainsFunc(key, unicode.IsControl):
		return fmt.Errorf("%w: %q contains a control character", ErrInvalid, key)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if reason := refuseSegment(segment); reason != "" {
			return fmt.Errorf("%w: %q has a segment %s", ErrInvalid, key, reason)
		}
	}
	return nil
}

// Check returns an error if the key is invalid or the context has ended. Stores call it
// before each operation; verb names the operation in the error.
func Check(ctx context.Context, verb, key string) error {
	if err := ValidateKey(key); err != nil {
		return fmt.Errorf("%s object: %w", verb, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s object %q: %w", verb, key, err)
	}
	return nil
}

// refuseSegment returns why a segment is invalid, or "".
func refuseSegment(segment string) string {
	switch {
	case segment == "":
		return "that is empty: remove the leading, trailing or double slash"
	case segment == ".", segment == "..":
		return fmt.Sprintf("%q", segment)
	case len(segment) > MaxSegmentBytes:
		return fmt.Sprintf("of %d bytes, the limit is %d", len(segment), MaxSegmentBytes)
	case strings.HasPrefix(segment, TempPrefix):
		return fmt.Sprintf("that begins with %q, which is reserved for stores", TempPrefix)
	}
	return ""
}

// CRC32C returns the Castagnoli checksum, as in [Object].
func CRC32C(data []byte) uint32 {
	return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
}
