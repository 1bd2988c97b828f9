// Package latency draws how long services take to answer: log-normal, as what
// they publish and what is measured of them looks, given by the median and the
// 99th percentile.
package latency

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Dist is a log-normal distribution of waiting times. The zero value is none at
// all.
type Dist struct{ P50, P99 time.Duration }

// Milliseconds is the distribution with this median and 99th percentile.
func Milliseconds(p50, p99 int) Dist {
	return Dist{P50: time.Duration(p50) * time.Millisecond, P99: time.Duration(p99) * time.Millisecond}
}

// z99 is how many standard deviations above the mean the 99th percentile of a
// normal distribution is.
const z99 = 2.3263478740408408

// At is the value of the distribution where a standard normal one has z.
func (d Dist) At(z float64) time.Duration {
	if d.P50 <= 0 {
		return 0
	}
	sigma := math.Log(float64(max(d.P99, d.P50))/float64(d.P50)) / z99
	return time.Duration(float64(d.P50) * math.Exp(sigma*z))
}

// Source draws from distributions. It is safe for concurrent use.
type Source struct {
	mu  sync.Mutex
	rng *rand.Rand
}

// NewSource draws with a generator that nobody else uses.
func NewSource(rng *rand.Rand) *Source { return &Source{rng: rng} }

// Draw is a value of d.
func (s *Source) Draw(d Dist) time.Duration {
	if d.P50 <= 0 {
		return 0
	}
	s.mu.Lock()
	z := s.rng.NormFloat64()
	s.mu.Unlock()
	return d.At(z)
}
