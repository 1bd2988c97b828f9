package rest

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// EditTagHeader is the response header that contains the version of an object that commands can change. A command with
// this version in its header If-Match is executed only if the object still has the version.
const EditTagHeader = "Servo-Edit-Tag"

// etag returns the entity tag of a response: the edit tag, if there is one, and a hash of the response. The revision
// alone does not identify a response, because many responses also depend on the time and on the project.
func etag(editTag string, body []byte) string {
	sum := sha256.Sum256(body)
	hash := base64.RawURLEncoding.EncodeToString(sum[:12])
	if editTag != "" {
		hash = editTag + "." + hash
	}
	return `"` + hash + `"`
}

// matches reports whether a header If-None-Match names a tag. Weak tags match, too (RFC 9110, 13.1.2).
func matches(header, tag string) bool {
	for one := range strings.SplitSeq(header, ",") {
		one = strings.TrimSpace(one)
		if one == "*" || strings.TrimPrefix(one, "W/") == tag {
			return true
		}
	}
	return false
}
