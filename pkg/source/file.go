package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// MaxContent is the maximum size, in bytes, of a file whose content is part of an asset's code. For a larger file,
// only the size is part of the code.
const MaxContent = 16 << 20

// FileText returns the text that represents a file in an asset's code: the first 16 bytes of the SHA-256
// of its content or, for a large file, its size. If the file cannot be read or is not a regular file, the text is
// empty.
func FileText(files fs.FS, name string) string {
	info, err := fs.Stat(files, name)
	switch {
	case err != nil || !info.Mode().IsRegular():
		return ""
	case info.Size() > MaxContent:
		return SizeText(info)
	}
	f, err := files.Open(name)
	if err != nil {
		return ""
	}
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, MaxContent+1))
	if err = errors.Join(err, f.Close()); err != nil || n > MaxContent {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]) //nolint:mnd // see above
}

// SizeText returns the text that represents a file in an asset's code if only the file's size is part of the code.
func SizeText(info fs.FileInfo) string { return stamp{Size: info.Size()}.text() }

func (s stamp) text() string { return fmt.Sprintf("%d bytes", s.Size) }

// Texts caches the texts of files: see [FileText]. The zero value is ready for use.
type Texts struct {
	mu    sync.Mutex
	known map[string]known
}

type known struct {
	stamp stamp
	text  string
}

// maxTexts limits the number of cached texts.
const maxTexts = 20_000

// text returns the text of a file in a folder. It reads the file again if its stamp has changed.
func (t *Texts) text(root, name string, now stamp) string {
	path := filepath.Join(root, name)
	t.mu.Lock()
	old, ok := t.known[path]
	t.mu.Unlock()
	if ok && old.stamp == now {
		return old.text
	}
	text := FileText(os.DirFS(root), name)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxTexts {
		t.known = map[string]known{}
	}
	t.known[path] = known{now, text}
	return text
}

// Code detects whether files that are part of an asset's code change while a task executes the asset.
type Code struct {
	root   string
	want   map[string]string
	before map[string]stamp
	other  bool // a file differed from the plan when Watch was called
}

// Watch records the current state of the files of a task's code. The parameter want maps the names of these files,
// relative to root, to the texts that represent them in the plan.
func (t *Texts) Watch(root string, want map[string]string) *Code {
	c := &Code{root: root, want: want}
	c.before = c.stamps()
	for name, planned := range want {
		now := c.before[name]
		if planned != now.text() && planned != t.text(root, name, now) {
			c.other = true
		}
	}
	return c
}

// Changed reports whether a task may have read files that differ from its plan: a file differed when Watch was
// called, or has been written since.
func (c *Code) Changed() bool {
	if c.other {
		return true
	}
	for name, now := range c.stamps() {
		if now != c.before[name] {
			return true
		}
	}
	return false
}

func (c *Code) stamps() map[string]stamp {
	stamps := make(map[string]stamp, len(c.want))
	for name := range c.want {
		var s stamp // the zero stamp if the file does not exist
		if info, err := os.Stat(filepath.Join(c.root, filepath.FromSlash(name))); err == nil {
			s = stampOf(info)
		}
		stamps[name] = s
	}
	return stamps
}
