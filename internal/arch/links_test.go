package arch_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// link matches a Markdown link without a scheme: to a file of the repository, to a heading in such a file, or to a
// heading of the same page.
var (
	link        = regexp.MustCompile(`\]\(([^)#: ]*)(?:#([^)]*))?\)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	codeBlock   = regexp.MustCompile("(?ms)^```.*?^```$")
	linked      = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped     = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the anchors of the headings of a page.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range pageHeading.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, ""), -1) {
		text := dropped.ReplaceAllString(linked.ReplaceAllString(strings.ToLower(m[1]), "$1"), "")
		found[strings.ReplaceAll(text, " ", "-")] = true
	}
	return found
}

func TestDocumentLinksResolve(t *testing.T) {
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(file, ".md"):
			return nil
		}
		content, err := os.ReadFile(file) //nolint:gosec // a file of the repository
		if err != nil {
			return err
		}
		for _, match := range link.FindAllStringSubmatch(string(content), -1) {
			to := file
			if match[1] != "" {
				to = filepath.Join(filepath.Dir(file), match[1])
				if _, err := os.Stat(to); err != nil {
					t.Errorf("%s links to %s, which does not exist", file, match[1])
					continue
				}
			}
			if match[2] == "" || !strings.HasSuffix(to, ".md") {
				continue
			}
			page, err := os.ReadFile(to) //nolint:gosec // a file of the repository
			if err != nil {
				return err
			}
			if !anchors(string(page))[match[2]] {
				t.Errorf("%s links to %s#%s, but that page has no such heading", file, match[1], match[2])
			}
		}
		return nil
	})
	require.NoError(t, err)
}
