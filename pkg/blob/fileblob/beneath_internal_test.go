package fileblob

import (
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/servo-orchestration/servo/internal/blobtest"
	"github.com/servo-orchestration/servo/pkg/blob"
)

// The store must work without openat2(2): old kernels lack this call, and some sandboxes forbid it.
func TestContractWithoutOpenBeneath(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		return openWith(t, t.TempDir(), func(sys *system) {
			sys.openBeneath = func(_ *os.File, name string, _ int) (*os.File, error) {
				return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOSYS}
			}
		})
	})
}
