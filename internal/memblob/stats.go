package memblob

// PageSize is how many objects one request of a listing returns, as in Google Cloud Storage
// and S3.
const PageSize = 1000

// Stats counts the requests that a store answered, by kind, whatever the outcome. Requests
// refused before they reach the store (invalid key, finished context) are not counted.
type Stats struct {
	Creates  int64 // Create and CreateFrom
	Replaces int64
	Puts     int64
	Gets     int64 // Get and Open
	Heads    int64
	Lists    int64 // pages of at most PageSize objects
	Deletes  int64

	BytesWritten int64
	BytesRead    int64
}

// Writes returns the number of requests for which cloud stores charge the higher price: writes and listings.
func (s Stats) Writes() int64 { return s.Creates + s.Replaces + s.Puts + s.Lists }

// Reads returns the number of requests for which cloud stores charge the lower price. Deletions are free.
func (s Stats) Reads() int64 { return s.Gets + s.Heads }

// Sub returns the requests since an earlier reading.
func (s Stats) Sub(earlier Stats) Stats {
	return Stats{
		Creates:      s.Creates - earlier.Creates,
		Replaces:     s.Replaces - earlier.Replaces,
		Puts:         s.Puts - earlier.Puts,
		Gets:         s.Gets - earlier.Gets,
		Heads:        s.Heads - earlier.Heads,
		Lists:        s.Lists - earlier.Lists,
		Deletes:      s.Deletes - earlier.Deletes,
		BytesWritten: s.BytesWritten - earlier.BytesWritten,
		BytesRead:    s.BytesRead - earlier.BytesRead,
	}
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}
