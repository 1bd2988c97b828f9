package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestStampIdentifiesRowsOfAsset(t *testing.T) {
	partition := func(asset, key string, seq int64) *state.Partition {
		return &state.Partition{AssetKey: asset, PartitionKey: key, Meta: state.Meta{Seq: seq}}
	}
	of := func(index string, change func(*state.State)) Stamp {
		s := state.New(ids.Domain{})
		s.Partitions.Put(partition("a/b", "1", 5))
		s.Partitions.Put(partition("a/b", "2", 9))
		s.Partitions.Put(partition("a/c", "1", 11))
		change(s)
		return (&Snapshot{State: s, History: History{indexes: map[string]manifest.File{partitionsTable: {Key: index}}}}).StampOf("a/b")
	}
	same := of("h1", func(*state.State) {})
	require.Equal(t, same, of("h1", func(s *state.State) {
		s.Partitions.Put(partition("a/bb", "1", 12))
		s.Marks.Put(&state.Mark{AssetKey: "a/bb", Meta: state.Meta{Seq: 13}})
		s.AcceptedCodes.Put(&state.AcceptedCode{AssetKey: "a/bb", Meta: state.Meta{Seq: 14}})
		s.Forgotten.Put(&state.ForgottenAsset{AssetKey: "a/bb", Meta: state.Meta{Seq: 15}})
	}), "rows of other assets")
	for name, change := range map[string]func(*state.State){
		"a changed partition": func(s *state.State) { s.Partitions.Put(partition("a/b", "1", 12)) },
		"an added partition":  func(s *state.State) { s.Partitions.Put(partition("a/b", "3", 12)) },
		"a removed partition": func(s *state.State) {
			gone := partition("a/b", "1", 12)
			gone.Deleted = true
			s.Partitions.Put(gone)
		},
		"a mark": func(s *state.State) { s.Marks.Put(&state.Mark{AssetKey: "a/b", Meta: state.Meta{Seq: 12}}) },
		"an accepted code": func(s *state.State) {
			s.AcceptedCodes.Put(&state.AcceptedCode{AssetKey: "a/b", Meta: state.Meta{Seq: 12}})
		},
		"a forgotten asset": func(s *state.State) {
			s.Forgotten.Put(&state.ForgottenAsset{AssetKey: "a/b", Meta: state.Meta{Seq: 12}})
		},
		"an asset's old row": func(s *state.State) { s.Marks.Put(&state.Mark{AssetKey: "a/b", Meta: state.Meta{Seq: 1}}) },
	} {
		require.NotEqual(t, same, of("h1", change), name)
	}
	// If a row was written and has then moved to history, the live rows are the same as before, and only the history
	// differs.
	require.NotEqual(t, same, of("h2", func(*state.State) {}), "another history")
}

func TestKeysStampIdentifiesKeys(t *testing.T) {
	s := &Snapshot{State: state.New(ids.Domain{})}
	s.State.KeySets.Put(&state.KeyBlock{Set: "regions", Keys: "eu", Meta: state.Meta{Seq: 5}})
	before := s.KeysStamp()
	s.State.KeySets.Put(&state.KeyBlock{Set: "regions", Keys: "eu\nus", Meta: state.Meta{Seq: 6}})
	require.NotEqual(t, before, s.KeysStamp())
}
