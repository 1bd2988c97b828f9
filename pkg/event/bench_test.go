package event_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
)

func BenchmarkEncodeLine(b *testing.B) {
	e := wrap(finished())
	var line []byte
	for b.Loop() {
		var err error
		line, err = event.Encode(line[:0], e)
		require.NoError(b, err)
	}
	b.SetBytes(int64(len(line)))
}

func BenchmarkDecodeLine(b *testing.B) {
	line, err := event.Encode(nil, wrap(finished()))
	require.NoError(b, err)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		_, err := event.DecodeLine(line)
		require.NoError(b, err)
	}
}
