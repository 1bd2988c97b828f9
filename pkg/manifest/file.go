package manifest

import (
	"context"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// LoadFile reads a state file and verifies its size and checksum. The error is
// [ErrMissing] if the file does not exist, and a [CorruptError] if its content is not
// what the manifest recorded.
func (s *Store) LoadFile(ctx context.Context, f File) ([]byte, error) {
	data, _, err := blob.Get(ctx, s.blobs, f.Key, f.Size)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return nil, &missingError{f.Key}
	case tooLarge(err):
		return nil, &CorruptError{Key: f.Key, Reason: fmt.Sprintf("it has more than the %d bytes recorded in the manifest", f.Size)}
	case err != nil:
		return nil, fmt.Errorf("read state file %s: %w", f.Key, err)
	}
	if err := f.Verify(data); err != nil {
		return nil, err
	}
	return data, nil
}

// Verify returns a [CorruptError] unless data has the size and checksum of the file.
func (f File) Verify(data []byte) error {
	if int64(len(data)) != f.Size {
		return &CorruptError{Key: f.Key, Reason: fmt.Sprintf("it has %d bytes, but the manifest recorded %d", len(data), f.Size)}
	}
	if sum := blob.CRC32C(data); sum != f.CRC32C {
		return &CorruptError{Key: f.Key, Reason: fmt.Sprintf("its CRC-32C is %08x, but the manifest recorded %08x", sum, f.CRC32C)}
	}
	return nil
}
