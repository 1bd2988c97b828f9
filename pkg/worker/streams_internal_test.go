package worker

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/clock"
)

func TestStreamsKeepLinesWhole(t *testing.T) {
	var log bytes.Buffer
	m := newStreams(&log)
	out, err := &m.all[0], &m.all[1]
	write := func(s *stream, text string) {
		n, failed := s.Write([]byte(text))
		require.NoError(t, failed)
		require.Equal(t, len(text), n)
	}
	write(out, "out")
	write(err, "Traceback\n")
	write(out, " 0\nou")
	write(out, "t 1\n")
	write(err, "  File")
	write(out, "out 2\n")
	write(err, " x.py\n")
	require.Equal(t, "out 0\nTraceback\nout 1\n  File x.py\nout 2\n", log.String())
	write(out, "50 %")
	write(err, "failed")
	m.flush()
	require.Equal(t, "50 %\nfailed", strings.TrimPrefix(log.String(), "out 0\nTraceback\nout 1\n  File x.py\nout 2\n"))
}

func TestStreamsHoldTextForHalfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := newStreams(&log)
		stop := background(t.Context(), func(ctx context.Context) { m.run(ctx, clock.System{}) })
		_, _ = m.all[0].Write([]byte("waiting for a lock …"))
		_, _ = m.all[1].Write([]byte("the lock is held\n"))
		require.NoError(t, clock.System{}.Sleep(t.Context(), holdFor-time.Millisecond))
		synctest.Wait()
		require.Equal(t, "waiting for a lock …", log.String())
		require.NoError(t, clock.System{}.Sleep(t.Context(), time.Millisecond))
		synctest.Wait()
		require.Equal(t, "waiting for a lock …\nthe lock is held\n", log.String())
		stop()
	})
}

func TestStreamsLimitHeldText(t *testing.T) {
	var log bytes.Buffer
	m := newStreams(&log)
	_, _ = m.all[0].Write([]byte("x"))
	for range maxHeld + 1 {
		_, _ = m.all[1].Write([]byte("y"))
	}
	require.Equal(t, "x\n"+strings.Repeat("y", maxHeld+1), log.String())
}

// Unless held text is flushed because time has passed, the log contains exactly the lines of both streams, and the lines
// of each stream keep their order.
func TestStreamsLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log bytes.Buffer
		m := newStreams(&log)
		texts := [2]string{}
		for range rapid.IntRange(0, 30).Draw(t, "writes") {
			i := rapid.IntRange(0, 1).Draw(t, "stream")
			text := strings.NewReplacer("a", string(rune('a'+i))).Replace(rapid.StringMatching(`[a\n]{0,5}`).Draw(t, "text"))
			texts[i] += text
			_, _ = m.all[i].Write([]byte(text))
		}
		for i := range m.all {
			_, _ = m.all[i].Write([]byte("\n"))
			texts[i] += "\n"
		}
		m.flush()
		require.Nil(t, m.open)
		require.Equal(t, len(texts[0])+len(texts[1]), log.Len())
		var got [2]string
		for line := range strings.Lines(log.String()) {
			if line == "\n" {
				continue // an empty line of one of the streams
			}
			i := int(line[0] - 'a')
			require.Equal(t, strings.Repeat(line[:1], len(line)-1)+"\n", line)
			got[i] += line
		}
		for i := range texts {
			want := ""
			for line := range strings.Lines(texts[i]) {
				if line != "\n" {
					want += line
				}
			}
			require.Equal(t, want, got[i])
		}
	})
}
