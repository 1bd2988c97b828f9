package calendar

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "embed" // the zone data
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// ZoneVersion is the version of the IANA time zone data in this package. `make zonedata` updates
// the data.
const ZoneVersion = "2025c"

// packed holds the data of all zones: see internal/zonepack.
//
//go:embed zones.tar.gz
var packed []byte

// zoneData is the unpacked archive, and the zones that were used so far.
type zoneData struct {
	version string
	files   map[string][]byte
	loaded  sync.Map // name → *zone
}

// unpacked returns the zone data. The first call unpacks it.
var unpacked = sync.OnceValue(func() *zoneData {
	d, err := unpack(packed)
	if err != nil {
		panic("the embedded zone data is damaged: " + err.Error())
	}
	return d
})

func unpack(data []byte) (*zoneData, error) {
	plain, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	archive := tar.NewReader(plain)
	d := &zoneData{files: map[string][]byte{}}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag == tar.TypeLink {
			d.files[header.Name] = d.files[header.Linkname]
			continue
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		if header.Name == "VERSION" {
			d.version = strings.TrimSpace(string(content))
			continue
		}
		d.files[header.Name] = content
	}
}

// Zone returns a time zone by its IANA name, from the zone data of this package. The zone data of
// the machine has no effect.
func Zone(name string) (*time.Location, error) {
	z, err := loadZone(name)
	if err != nil {
		return nil, err
	}
	return z.location, nil
}

// Zones returns the names of all time zones, sorted.
func Zones() []string {
	names := make([]string, 0, len(unpacked().files))
	for name := range unpacked().files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// WholeHours reports whether the clocks of a zone differ from UTC by whole hours at all instants of schedules. It returns
// false if there is no such zone.
func WholeHours(name string) bool {
	z, err := loadZone(name)
	return err == nil && !slices.ContainsFunc(z.spans, func(s span) bool { return s.offset%3600 != 0 })
}

// zone is a time zone as a list of spans with one offset each.
type zone struct {
	name     string
	location *time.Location
	spans    []span // ascending; the first one begins before all instants
}

// span begins at start and ends where the next one begins.
type span struct {
	start  int64 // Unix seconds
	offset int64 // seconds east of UTC
}

func loadZone(name string) (*zone, error) {
	d := unpacked()
	if found, ok := d.loaded.Load(name); ok {
		return found.(*zone), nil //nolint:errcheck // all values of the map have this type
	}
	data, ok := d.files[name]
	if !ok {
		return nil, unknownZone(name, d.files)
	}
	location := time.UTC
	if name != "UTC" {
		var err error
		if location, err = time.LoadLocationFromTZData(name, data); err != nil {
			return nil, fmt.Errorf("read the zone data of %s: %w", name, err)
		}
	}
	found, _ := d.loaded.LoadOrStore(name, &zone{name: name, location: location, spans: spansOf(location)})
	return found.(*zone), nil //nolint:errcheck // all values of the map have this type
}

// reach is greater than every UTC offset, in seconds.
const reach = 16 * 60 * 60

// spansOf lists the spans of a zone that can contain an instant of a schedule or its local time.
func spansOf(location *time.Location) []span {
	at := time.Unix(firstInstant-2*reach, 0).In(location)
	_, offset := at.Zone()
	spans := []span{{math.MinInt64, int64(offset)}}
	for at.Unix() < lastInstant+2*reach {
		_, end := at.ZoneBounds()
		if end.IsZero() {
			break
		}
		if !end.After(at) {
			// On the last day of a leap year, ZoneBounds wrongly returns the beginning of that day as the end of the
			// span.
			end = at.Add(time.Hour)
		}
		at = end
		if _, offset := at.Zone(); int64(offset) != spans[len(spans)-1].offset {
			spans = append(spans, span{at.Unix(), int64(offset)})
		}
	}
	return spans
}

// at returns the index of the span that contains an instant.
func (z *zone) at(instant int64) int {
	return sort.Search(len(z.spans), func(i int) bool { return z.spans[i].start > instant }) - 1
}

// until returns the end of a span.
func (z *zone) until(i int) int64 {
	if i+1 < len(z.spans) {
		return z.spans[i+1].start
	}
	return math.MaxInt64
}

// local holds the instants at which the clocks of a zone show a local time: the first n elements of the array. If
// there are none, the local time is in a gap, and gap is the index of the span that begins after it.
type local struct {
	instants [maxInstants]int64
	n        int
	gap      int // 0: no gap
}

// maxInstants is the greatest number of instants at which clocks may show the same local time. So far, no zone has
// had a local time three times.
const maxInstants = 4

// resolve returns the instants of a local time. wall is in seconds since 1970-01-01T00:00 of the zone's clocks.
func (z *zone) resolve(wall int64) local {
	var l local
	for i := z.at(wall - reach); i < len(z.spans) && z.spans[i].start <= wall+reach; i++ {
		s := z.spans[i]
		if i > 0 && l.gap == 0 && s.start+z.spans[i-1].offset <= wall && wall < s.start+s.offset {
			l.gap = i
		}
		if at := wall - s.offset; s.start <= at && at < z.until(i) && l.n < maxInstants {
			l.instants[l.n] = at
			l.n++
		}
	}
	if l.n > 0 {
		l.gap = 0
	}
	return l
}

// Bound parses the start or the end of a schedule: a date (2026-01-31) or a local time (2026-01-31T06:00) in a time
// zone, or a time with a UTC offset. For a local time in a gap, Bound returns the end of the gap. For a local time
// that occurs twice, it returns the first occurrence.
func Bound(text, timezone string) (time.Time, error) {
	z, err := loadZone(timezone)
	if err != nil {
		return time.Time{}, err
	}
	at, err := z.bound(text)
	if err != nil {
		return time.Time{}, err
	}
	if at < firstInstant || at >= lastInstant {
		return time.Time{}, outside(text)
	}
	return time.Unix(at, 0).UTC(), nil
}

func (z *zone) bound(text string) (int64, error) {
	const longest = 64 // bytes
	if len(text) > longest {
		return 0, fmt.Errorf("%q… is not a date or a time: write 2026-01-31, 2026-01-31T06:00 or 2026-01-31T06:00Z", text[:longest])
	}
	if at, err := time.Parse("2006-01-02T15:04Z07:00", text); err == nil {
		return at.Unix(), nil
	}
	for _, layout := range []string{time.DateOnly, localTime} {
		wall, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		l := z.resolve(wall.Unix())
		if l.n > 0 {
			return l.instants[0], nil
		}
		return z.spans[l.gap].start, nil
	}
	return 0, fmt.Errorf("%q is not a date or a time: write 2026-01-31, 2026-01-31T06:00 or 2026-01-31T06:00Z", text)
}

func outside(text string) error {
	return fmt.Errorf("%s is not in the years 1970 to 2199", text)
}

func unknownZone(name string, zones map[string][]byte) error {
	const (
		help    = "unknown time zone %q: write "
		longest = 64 // longer names are not compared
	)
	if len(name) > longest {
		return fmt.Errorf("unknown time zone %q…: write an IANA name such as UTC, Europe/Paris or America/New_York", name[:longest])
	}
	best, least := "", math.MaxInt
	for zone := range zones {
		_, city, _ := strings.Cut(zone, "/")
		d := min(distance(strings.ToLower(name), strings.ToLower(zone)), distance(strings.ToLower(name), strings.ToLower(city)))
		if d < least || d == least && zone < best {
			best, least = zone, d
		}
	}
	const similar = 1 // letter differs
	if name == "" || least > similar {
		return fmt.Errorf(help+"an IANA name such as UTC, Europe/Paris or America/New_York", name)
	}
	return fmt.Errorf(help+"%s", name, best)
}
