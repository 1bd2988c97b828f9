package sim

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// Prepare has what all worlds share made outside of their bubbles: the library that
// writes Parquet keeps channels, and one that is made in a bubble may not leave it.
func Prepare() {
	data, err := archive.Encode([]archive.Entry{{ID: ids.AtTime(time.UnixMilli(0)), Data: []byte("{}\n")}})
	if err == nil {
		_, err = archive.Decode(data)
	}
	if err != nil {
		panic(err) // it is always the same
	}
}

// archived is told of each file of the archive that was created: what it holds was
// appended, byte for byte, and is below the cut of a revision.
func (o *oracle) archived(key string) {
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
				o.violation("archive", "%s holds entry %s, which is not what was appended, or is above the cut", key, e.ID)
			}
			if _, twice := f.archived[e.ID]; twice {
				o.w.counts["entries archived twice"]++
			}
			f.archived[e.ID] = crc
			o.w.counts["archived entries"]++
		}
		return
	}
	o.violation("archive", "%s is not where its entries belong", key)
}

// deletingEntry checks that what leaves the ledger is in the archive.
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

// everywhere are the entries of ledger and archive as readers find them, with their
// checksums, after a check that they are all that were ever appended.
func (o *oracle) everywhere(f *followed) map[string]uint32 {
	ctx, found, last := context.Background(), map[string]uint32{}, ""
	reader := archive.NewReader(o.w.blobs, f.domain)
	for e, err := range reader.List(ctx, archive.Range{}) {
		if err == nil && e.Data == nil {
			e.Data, err = reader.Read(ctx, e.ID)
		}
		if err != nil || e.ID <= last {
			o.violation("I-15 nothing is lost", "list the ledger of %s: %s after %s: %v", f.domain, e.ID, last, err)
			return found
		}
		found[e.ID], last = blob.CRC32C(e.Data), e.ID
	}
	for entry, crc := range f.durable {
		if got, ok := found[entry]; !ok || got != crc {
			o.violation("I-15 nothing is lost", "entry %s of %s is neither in the ledger nor in the archive as it was appended", entry, f.domain)
			return found
		}
	}
	return found
}
