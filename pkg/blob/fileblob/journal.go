package fileblob

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/servo-orchestration/servo/pkg/blob"
)

const (
	journalName = "journal"
	// oldName is the name of the previous journal while the files that it records are flushed.
	oldName = "journal.old"
)

// journal is the log of a directory as this process knows it. The store's lock protects it.
type journal struct {
	file   *os.File // nil if closed
	header header
	status status
	// opened is true after this process has started the journal, or has verified that it belongs to this boot.
	opened bool
	// rotating is true while this process flushes an old journal's files.
	rotating bool
}

// lastVersion returns the greatest version that any process has assigned.
func (s *Store) lastVersion() int64 {
	if s.journal == nil {
		return 0
	}
	return s.journal.status.last
}

// enter prepares the journal for a goroutine that has taken the lock. Usually this process can continue with the
// journal that it has open.
func (s *Store) enter() error {
	j := s.journal
	if j == nil {
		return nil
	}
	found, err := loadStatus(s.writes.file)
	if err != nil {
		return err
	}
	j.status = found
	if found.mark == clean && j.file != nil && found.log == j.header.id {
		return nil
	}
	return s.catchUp()
}

// catchUp opens the journal if this process cannot continue with the journal that it knows: another process has
// started a new one or has died while it changed the directory, a flush has failed, or the machine has restarted.
func (s *Store) catchUp() error {
	j := s.journal
	if err := j.close(); err != nil {
		return err
	}
	logs, err := s.openLogs()
	if err != nil {
		return err
	}
	ofThisBoot := true
	for _, l := range logs {
		ofThisBoot = ofThisBoot && l.header.boot == s.sys.boot && (s.sys.boot != "" || j.opened)
	}
	if newest := len(logs) - 1; ofThisBoot && newest >= 0 && j.status.log == logs[newest].header.id {
		if j.status.mark == clean && logs[newest].name == journalName {
			j.file, j.header = logs[newest].file, logs[newest].header
			j.opened = true
			return logs[:newest].close()
		}
		// Records beyond status.end may have reached the disk, but no process has acknowledged them or
		// shown their files: drop them.
		logs[newest].end = j.status.end
	}
	if !ofThisBoot {
		j.status = status{} // the status is from another boot, so it is not trusted
	}
	for _, l := range logs {
		j.status.last = max(j.status.last, l.header.last)
	}
	err = s.restart(logs, !ofThisBoot || j.status.mark == suspect)
	return errors.Join(err, logs.close())
}

// restart makes all files durable and starts a new journal. If replay is true, it first restores the files from the
// journals, because a power loss may have damaged them. Otherwise, every file that was renamed to its final name is
// correct. If the file of a record was not renamed, the record was not acknowledged, and is discarded.
func (s *Store) restart(logs logs, replay bool) error {
	j := s.journal
	j.status.mark = busy
	if replay {
		j.status.mark = suspect
	}
	if err := j.status.save(s.writes.file); err != nil {
		return err
	}
	if len(logs) > 0 {
		if err := s.recoverFiles(logs, replay); err != nil {
			// Flushing again would not repair a failed flush: replay next time.
			j.status.mark = suspect
			return errors.Join(err, j.status.save(s.writes.file))
		}
	}
	// Remove the older journal first: it must never exist beside a journal that does not
	// follow it.
	if err := s.removeOld(); err != nil {
		return err
	}
	return s.begin()
}

// recoverFiles replays the journals if replay is true, and makes all files durable.
func (s *Store) recoverFiles(logs logs, replay bool) error {
	if replay {
		// Flush the journals first, because records that are not durable must not become visible. On systems where this
		// package can distinguish boots, all these records are already durable.
		for _, l := range logs {
			if err := s.sys.sync(l.file); err != nil {
				return fmt.Errorf("flush journal: %w", err)
			}
		}
	}
	var keys []string
	if replay || s.sys.syncAll == nil {
		f, err := readLogs(logs)
		if err != nil {
			return err
		}
		s.journal.status.last = max(s.journal.status.last, f.last)
		keys = f.keys()
		if replay {
			if s.sys.syncAll != nil {
				_ = s.sys.syncAll(s.dirFile) // clears earlier errors; replay writes the affected files again
			}
			if err := s.replay(f); err != nil {
				return err
			}
		}
	}
	return s.flushAll(func() ([]string, error) { return keys, nil })
}

// flushAll makes all earlier writes durable. It calls syncAll if the system has it. Otherwise it
// flushes the objects with the given keys.
func (s *Store) flushAll(keys func() ([]string, error)) error {
	if s.sys.syncAll != nil {
		return s.sys.syncAll(s.dirFile)
	}
	list, err := keys()
	if err != nil {
		return err
	}
	return s.flushFiles(list)
}

// begin starts a new journal and makes its name durable.
func (s *Store) begin() (err error) {
	j := s.journal
	if err := j.close(); err != nil {
		return err
	}
	var id [8]byte
	_, _ = rand.Read(id[:])
	h := header{boot: s.sys.boot, id: binary.LittleEndian.Uint64(id[:]), last: j.status.last}
	temp := rand.Text()
	file, err := s.root.OpenFile(path.Join(blob.TempPrefix, temp), os.O_CREATE|os.O_EXCL|os.O_RDWR, fileMode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
			_ = s.root.Remove(path.Join(blob.TempPrefix, temp))
		}
	}()
	b, sum := h.encode()
	if _, err := file.Write(append(b, make([]byte, s.limits.ahead)...)); err != nil {
		return err
	}
	if err := s.sys.fsync(file); err != nil {
		return err
	}
	if err := s.sys.rename(s.temps, temp, s.temps, journalName); err != nil {
		return err
	}
	if err := errors.Join(s.sys.fsync(s.temps), s.sys.fsync(s.dirFile)); err != nil {
		return err
	}
	j.status = status{mark: clean, log: h.id, end: headerBytes, chain: sum, last: h.last}
	if err := j.status.save(s.writes.file); err != nil {
		return err
	}
	j.file, j.header, j.opened = file, h, true
	return nil
}

// log appends the records of changes to the journal and flushes it: the commit point.
func (s *Store) log(changes []*change) error {
	j := s.journal
	if j == nil {
		return nil
	}
	next := j.status
	next.mark = busy
	if err := next.save(s.writes.file); err != nil {
		return err
	}
	var b []byte
	for _, c := range changes {
		r := c.record()
		b, next.chain = r.append(b, next.chain)
		next.last = max(next.last, c.version)
	}
	next.end += int64(len(b))
	if err := j.write(s.sys, b, next.end, s.limits.ahead); err != nil {
		// No change has taken effect: remove the partial records.
		if undone := j.file.Truncate(j.status.end); undone == nil {
			err = errors.Join(err, j.status.save(s.writes.file))
		}
		return err
	}
	if err := s.sys.sync(j.file); err != nil {
		j.status.mark = suspect
		return errors.Join(fmt.Errorf("flush journal: %w", err), j.status.save(s.writes.file))
	}
	// From here on the records are valid, even if this process dies: see restart.
	j.status = next
	return j.status.save(s.writes.file)
}

// record returns the journal record of a change.
func (c *change) record() record {
	switch t := c.content; {
	case t == nil:
		return record{kind: kindRemove, key: c.key}
	case t.isLarge():
		return record{kind: kindFile, key: c.key, size: t.size, crc: t.crc, version: c.version}
	default:
		return record{kind: kindSet, key: c.key, size: t.size, crc: t.crc, version: c.version, data: t.data}
	}
}

// write appends to the journal and, if possible, allocates space ahead.
func (j *journal) write(sys system, b []byte, end, ahead int64) error {
	if info, err := j.file.Stat(); err != nil {
		return err
	} else if size := info.Size(); end > size {
		// Ignore an error: there may be no space to allocate ahead, but enough space for the records themselves.
		_, _ = sys.write(j.file, zeroBytes(end-size+ahead), size)
	}
	_, err := sys.write(j.file, b, end-int64(len(b)))
	return err
}

// zeros extend journals.
var zeros [allocate + 64<<10]byte

// zeroBytes returns n zeros, which the caller must not change.
func zeroBytes(n int64) []byte {
	if n <= int64(len(zeros)) {
		return zeros[:n]
	}
	return make([]byte, n)
}

// leave marks the directory as consistent. If a file could not be renamed to its final name, the record of the file
// must not stay in the journal. In this case, leave starts a new journal.
func (s *Store) leave(failed error) {
	j := s.journal
	if j == nil {
		return
	}
	if failed != nil {
		logs, err := s.openLogs()
		if err == nil {
			_ = s.restart(logs, false) // if this fails, the next lock holder starts the journal
			_ = logs.close()
		}
		return
	}
	j.status.mark = clean
	if err := j.status.save(s.writes.file); err == nil {
		if flush := s.rotate(s.limits.rotate); flush != nil {
			s.sys.later(flush)
		}
	}
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	file := j.file
	j.file = nil
	return file.Close()
}

// logs are the one or two journals of a directory, the older one first.
type logs []openLog

type openLog struct {
	name   string
	file   *os.File
	header header
	end    int64 // end of the valid records; 0: all complete records are valid
}

func (s *Store) openLogs() (found logs, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, found.close())
		}
	}()
	for _, name := range []string{oldName, journalName} {
		file, err := s.root.OpenFile(path.Join(blob.TempPrefix, name), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return found, err
		}
		found = append(found, openLog{name: name, file: file})
		b := make([]byte, headerBytes)
		if _, err := file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
			return found, err
		}
		if found[len(found)-1].header, _, err = decodeHeader(b); err != nil {
			return found, fmt.Errorf("read journal %s: %w (use a version of Servo that can read it, or move the "+
				"file away: that loses writes from shortly before the machine stopped)", file.Name(), err)
		}
	}
	return found, nil
}

func (l logs) close() error {
	var err error
	for _, o := range l {
		err = errors.Join(err, o.file.Close())
	}
	return err
}
