package fileblob

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
)

// mark is the state in which the last lock holder left the journal.
type mark uint32

const (
	// clean: every record up to the end is on the disk, and its file has its final name.
	clean mark = 1
	// busy: a lock holder is working, or died while it worked.
	busy mark = 2
	// suspect: a flush failed. The system may report data as written that is not on the
	// disk, so the files must be restored from the journal.
	suspect mark = 3
)

// status is stored in the lock file and tells the next lock holder what the previous one knew about the journal. It
// is never flushed, and is trusted only for a journal of this boot.
type status struct {
	mark  mark
	log   uint64 // id of the journal
	end   int64  // end of its records
	chain uint32 // checksum of the last record
	last  int64  // the greatest version assigned
}

const statusBytes = 40

func (s *status) save(f *os.File) error {
	b := make([]byte, 4, statusBytes)
	b = binary.LittleEndian.AppendUint32(b, uint32(s.mark))
	b = binary.LittleEndian.AppendUint64(b, s.log)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.end))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.chain))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.last))
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	_, err := f.WriteAt(b, 0)
	return err
}

// loadStatus reads the status. If it is missing or damaged, loadStatus returns the zero
// value, which has no mark.
func loadStatus(f *os.File) (status, error) {
	b := make([]byte, statusBytes)
	if _, err := f.ReadAt(b, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return status{}, nil
		}
		return status{}, err
	}
	if binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return status{}, nil
	}
	return status{
		mark:  mark(binary.LittleEndian.Uint32(b[4:])),
		log:   binary.LittleEndian.Uint64(b[8:]),
		end:   int64(binary.LittleEndian.Uint64(b[16:])),
		chain: uint32(binary.LittleEndian.Uint64(b[24:])),
		last:  int64(binary.LittleEndian.Uint64(b[32:])),
	}, nil
}
