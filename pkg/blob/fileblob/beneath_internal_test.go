package fileblob

import (
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/servo-orchestration/servo/internal/blobtest"
	"github.com/servo-orchestration/servo/pkg/blob"
)

// Old kernels do not have openat2(2), and sandboxes forbid it.
func TestContractWithoutOpenBeneath(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		return openWith(t, t.TempDir(), func(sys *system) {
			sys.openBeneath = func(_ *os.File, name string, _ int) (*os.File, error) {
				return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOSYS}
			}
		})
	})
}
