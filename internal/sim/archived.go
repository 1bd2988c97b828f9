package sim

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// Prepare initializes the Parquet library, which all worlds share. Call it outside of any bubble of testing/synctest:
// the library keeps channels, and a channel that is created in a bubble must not be used outside of it.
func Prepare() {
	data, err := archive.Encode([]archive.Entry{{ID: ids.AtTime(time.UnixMilli(0)), Data: []byte("{}\n")}})
	if err == nil {
		_, err = archive.Decode(data)
	}
	if err != nil {
		panic(err) // cannot happen: the input is constant
	}
}

// checkArchive checks a new file of the archive. All of its entries must be below the cutoff of a revision, and must
// equal the appended entries byte for byte.
func (o *oracle) checkArchive(key string) {
	ctx := context.Background()
	for _, d := range o.w.domains {
		f := o.domains[d]
		data, _, err := o.w.blobs.Get(ctx, key)
		if err != nil {
			o.violation("archive", "%s: %v", key, err)
			return
		}
		entries, err := archive.Decode(data)
		if err != nil {
			o.violation("archive", "%s: %v", key, err)
			return
		}
		if key != archive.Key(d, entries[0].ID) {
			continue
		}
		o.w.counts["archive files"]++
		for _, e := range entries {
			crc := blob.CRC32C(e.Data)
			if f.durable[e.ID] != crc || e.ID >= f.cut {
				o.violation("archive", "%s contains entry %s, which differs from the appended one or is above the cutoff", key, e.ID)
			}
			if _, twice := f.archived[e.ID]; twice {
				o.w.counts["entries archived twice"]++
			}
			f.archived[e.ID] = crc
			o.w.counts["archived entries"]++
		}
		return
	}
	o.violation("archive", "%s is not stored under the key of its first entry", key)
}

// deletingEntry checks that an entry is in the archive before it is deleted.
func (o *oracle) deletingEntry(p *process, key string) {
	d, entry, err := ledger.ParseKey(key)
	if err != nil {
		o.violation("ledger", "%v", err)
		return
	}
	data, _, err := o.w.blobs.Get(context.Background(), key)
	if crc, ok := o.domains[d].archived[entry]; err != nil || !ok || crc != blob.CRC32C(data) {
		o.violation("I-15 nothing is lost", "%s deletes entry %s, which is not in the archive (%v)", p.id, entry, err)
	}
}

// listedEntries returns the entries of ledger and archive as readers find them, with their
// checksums. It checks that they are exactly the appended entries.
func (o *oracle) listedEntries(f *followed) map[string]uint32 {
	ctx, found, last := context.Background(), map[string]uint32{}, ""
	reader := archive.NewReader(o.w.blobs, f.domain)
	for e, err := range reader.List(ctx, archive.Range{}) {
		if err == nil && e.Data == nil {
			e.Data, err = reader.Read(ctx, e.ID)
		}
		if err != nil || e.ID <= last {
			o.violation("I-15 nothing is lost", "list the ledger of %s: entry %s follows entry %s: %v", f.domain, e.ID, last, err)
			return found
		}
		found[e.ID], last = blob.CRC32C(e.Data), e.ID
	}
	for entry, crc := range f.durable {
		if got, ok := found[entry]; !ok || got != crc {
			o.violation("I-15 nothing is lost", "entry %s of %s is neither in the ledger nor in the archive with the content that was appended", entry, f.domain)
			return found
		}
	}
	return found
}
