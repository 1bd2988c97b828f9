package fileblob

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// The journal is a header and records. All integers are little-endian:
//
//	header  "servolg1", id (8 bytes), last (8), length of boot (1), boot (51), checksum (4)
//	record  checksum (4), kind (1), 0 (1), length of key (2), checksum of content (4),
//	        size (8), version (8), key, content
//
// A record's checksum covers the bytes after it up to the end of the key. It continues the checksum of the previous
// record. The checksum of the first record continues that of the header. So a record is valid only in one place of
// one journal, and bytes that an earlier writer left beyond the end are not mistaken for a record.
const (
	logMagic    = "servolg1"
	headerBytes = 80
	bootBytes   = 51
	headBytes   = 28
	// maxInline is the size of the largest content that is copied into the journal. For larger content, the journal
	// contains only the checksum.
	maxInline = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type kind uint8

const (
	// kindSet: the object has this content, which follows the key.
	kindSet kind = 1
	// kindFile: the object is the file with this size, checksum and version.
	kindFile kind = 2
	// kindRemove: the object does not exist.
	kindRemove kind = 3
)

// record is the new state of an object after this point of the journal.
type record struct {
	kind    kind
	key     string
	size    int64
	crc     uint32 // the checksum of the content
	version int64
	data    []byte // set for kindSet
}

// append appends the encoded record to b. It returns the extended slice and the checksum of the record. The parameter
// chain is the checksum of the previous record.
func (r *record) append(b []byte, chain uint32) ([]byte, uint32) {
	start := len(b)
	b = slices.Grow(b, headBytes+len(r.key)+len(r.data))
	b = append(b, 0, 0, 0, 0, byte(r.kind), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.key)))
	b = binary.LittleEndian.AppendUint32(b, r.crc)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.size))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.version))
	b = append(b, r.key...)
	chain = crc32.Update(chain, castagnoli, b[start+4:])
	binary.LittleEndian.PutUint32(b[start:], chain)
	return append(b, r.data...), chain
}

// validate returns why a record with a correct checksum is not valid.
func (r *record) validate() error {
	switch {
	case r.kind != kindSet && r.kind != kindFile && r.kind != kindRemove:
		return fmt.Errorf("unknown kind %d", r.kind)
	case r.size < 0, r.kind == kindSet && r.size > maxInline, r.kind == kindRemove && r.size != 0:
		return fmt.Errorf("invalid size of %d bytes", r.size)
	case r.version < 0, r.version == 0 && r.kind != kindRemove:
		return fmt.Errorf("invalid version %d", r.version)
	}
	return blob.ValidateKey(r.key)
}

// header is the beginning of a journal.
type header struct {
	boot string // boot of the machine during which the journal was written
	id   uint64
	last int64 // the greatest version assigned before the journal began
}

// encode returns the header and its checksum, which the first record continues.
func (h *header) encode() ([]byte, uint32) {
	b := make([]byte, 0, headerBytes)
	b = append(b, logMagic...)
	b = binary.LittleEndian.AppendUint64(b, h.id)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.last))
	b = append(b, byte(len(h.boot)))
	b = append(b, h.boot...)
	b = b[:headerBytes-4]
	sum := crc32.Checksum(b, castagnoli)
	return binary.LittleEndian.AppendUint32(b, sum), sum
}

func decodeHeader(b []byte) (h header, sum uint32, err error) {
	if len(b) < headerBytes || string(b[:len(logMagic)]) != logMagic || b[24] > bootBytes {
		return header{}, 0, errors.New("not a journal, or a journal of an unsupported version")
	}
	sum = crc32.Checksum(b[:headerBytes-4], castagnoli)
	if sum != binary.LittleEndian.Uint32(b[headerBytes-4:]) {
		return header{}, 0, errors.New("its header is damaged")
	}
	h = header{
		id:   binary.LittleEndian.Uint64(b[8:]),
		last: int64(binary.LittleEndian.Uint64(b[16:])),
		boot: string(b[25 : 25+b[24]]),
	}
	return h, sum, nil
}

// scanner reads a journal from its beginning to the last complete record.
type scanner struct {
	header
	r     *bufio.Reader
	chain uint32
	end   int64 // end of the bytes that were read
	buf   []byte
}

func newScanner(r io.Reader) (*scanner, error) {
	s := &scanner{r: bufio.NewReaderSize(r, 1<<16), end: headerBytes}
	b := make([]byte, headerBytes)
	if _, err := io.ReadFull(s.r, b); err != nil && !isEnd(err) {
		return nil, err
	}
	var err error
	s.header, s.chain, err = decodeHeader(b)
	return s, err
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// next returns the next record, or io.EOF after the last complete one. An incomplete record at the end is ignored: it
// was being written when the power was lost. The content of the returned record is valid until the next call. The
// result at is the offset of the content in the journal.
func (s *scanner) next() (r record, at int64, err error) {
	head := make([]byte, headBytes, headBytes+blob.MaxKeyBytes)
	if err := s.read(head); err != nil {
		return record{}, 0, err
	}
	keyBytes := int(binary.LittleEndian.Uint16(head[6:]))
	if keyBytes > blob.MaxKeyBytes {
		return record{}, 0, io.EOF
	}
	head = head[:headBytes+keyBytes]
	if err := s.read(head[headBytes:]); err != nil {
		return record{}, 0, err
	}
	chain := crc32.Update(s.chain, castagnoli, head[4:])
	if head[4] == 0 || chain != binary.LittleEndian.Uint32(head) {
		return record{}, 0, io.EOF
	}
	r = record{
		kind: kind(head[4]), key: string(head[headBytes:]), crc: binary.LittleEndian.Uint32(head[8:]),
		size:    int64(binary.LittleEndian.Uint64(head[12:])),
		version: int64(binary.LittleEndian.Uint64(head[20:])),
	}
	if err := r.validate(); err != nil {
		return record{}, 0, fmt.Errorf("record at byte %d: %w", s.end, err)
	}
	at = s.end + int64(len(head))
	if r.kind == kindSet {
		if int64(cap(s.buf)) < r.size {
			s.buf = make([]byte, r.size)
		}
		r.data = s.buf[:r.size]
		if err := s.read(r.data); err != nil {
			return record{}, 0, err
		}
		if crc32.Checksum(r.data, castagnoli) != r.crc {
			return record{}, 0, io.EOF
		}
	}
	s.chain, s.end = chain, at+int64(len(r.data))
	return r, at, nil
}

func (s *scanner) read(p []byte) error {
	_, err := io.ReadFull(s.r, p)
	if isEnd(err) {
		return io.EOF
	}
	return err
}
