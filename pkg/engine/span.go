package engine

import (
	"fmt"
	"time"
)

// Span formats a duration for people: "0.42 s", "12.3 s", "4m 05s", "3h 07m", "2d 03h".
func Span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 10*time.Second-5*time.Millisecond:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < time.Minute-50*time.Millisecond:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm %02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh %02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	const day = 24 * time.Hour
	return fmt.Sprintf("%dd %02dh", d/day, d%day/time.Hour)
}
