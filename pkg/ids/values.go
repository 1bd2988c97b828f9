package ids

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of partitions, in bytes.
const (
	MaxName  = 63  // the name of a dimension or a key set
	MaxValue = 256 // a key that users choose
)

// ValidName reports whether s can name a dimension or a key set: a-z, 0-9 and _, beginning with a
// letter.
func ValidName(s string) bool {
	return len(s) <= MaxName && isWord(s) && s[0] >= 'a' && s[0] <= 'z'
}

// CheckValue returns an error if s cannot be a partition key that users choose.
func CheckValue(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("a partition value is empty: write at least one character")
	case len(s) > MaxValue:
		return fmt.Errorf("partition value %.40q… has %d bytes: at most %d are allowed", s, len(s), MaxValue)
	case strings.TrimSpace(s) != s, strings.ContainsAny(s, ",;=*"), strings.Contains(s, ".."), !utf8.ValidString(s),
		strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '�' }):
		return fmt.Errorf("invalid partition value %q: it must not contain , ; = * .. or control characters, "+
			"or begin or end with a space", s)
	}
	return nil
}
