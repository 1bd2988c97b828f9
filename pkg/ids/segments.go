package ids

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxSegment is the maximum length of a segment of an object key, in bytes. A longer segment is replaced by its hash.
// File systems allow 255 bytes.
const MaxSegment = 200

// PartitionSegment returns a partition as one segment of an object key, for example
// "date-2012-01-01,region-eu", or "_" for an unpartitioned asset. Different partition keys
// have different segments.
func PartitionSegment(partitionKey string) string {
	if partitionKey == "" {
		return "_"
	}
	p, err := ParsePartition(partitionKey)
	if err != nil || len(p) == 0 {
		return hashedSegment(partitionKey)
	}
	var b strings.Builder
	for i, dimension := range p.Dimensions() {
		if i > 0 {
			b.WriteByte(',')
		}
		var name strings.Builder
		escapeTo(&name, dimension)
		b.WriteString(strings.ReplaceAll(name.String(), "-", "%2D")) // the first "-" ends the dimension
		b.WriteByte('-')
		escapeTo(&b, p[dimension])
	}
	if b.Len() > MaxSegment {
		return hashedSegment(partitionKey)
	}
	return b.String()
}

// CellURI returns the folder of a partition in the directory of a batch.
func CellURI(batchURI, partitionKey string) string {
	return batchURI + PartitionSegment(partitionKey) + "/"
}

// Segment returns any text as one segment of an object key. Different texts have different segments.
func Segment(text string) string {
	var b strings.Builder
	escapeTo(&b, text)
	if s := b.String(); len(s) <= MaxSegment && strings.Trim(s, ".") != "" {
		return s
	}
	return hashedSegment(text)
}

// hashedSegment returns the segment for a text that is too long or not a valid segment. Only these
// segments begin with "~".
func hashedSegment(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "~" + hex.EncodeToString(sum[:])
}

// IsPlain reports whether a byte needs no escape in a segment.
func IsPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

func escapeTo(b *strings.Builder, s string) {
	const digits = "0123456789ABCDEF"
	for _, c := range []byte(s) {
		if IsPlain(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
}
