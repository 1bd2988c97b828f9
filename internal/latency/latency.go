// Package latency draws the response times of services. They have a log-normal distribution, which fits published and
// measured latencies. The median and the 99th percentile define it.
package latency

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Dist is a log-normal distribution of latencies. The zero Dist means no latency.
type Dist struct{ P50, P99 time.Duration }

// Milliseconds returns the distribution with this median and 99th percentile.
func Milliseconds(p50, p99 int) Dist {
	return Dist{P50: time.Duration(p50) * time.Millisecond, P99: time.Duration(p99) * time.Millisecond}
}

// z99 is the 99th percentile of a standard normal distribution.
const z99 = 2.3263478740408408

// At returns the latency that corresponds to the value z of a standard normal distribution.
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

// NewSource returns a Source that draws with rng. The Source owns rng.
func NewSource(rng *rand.Rand) *Source { return &Source{rng: rng} }

// Draw returns a random latency from the distribution d.
func (s *Source) Draw(d Dist) time.Duration {
	if d.P50 <= 0 {
		return 0
	}
	s.mu.Lock()
	z := s.rng.NormFloat64()
	s.mu.Unlock()
	return d.At(z)
}
