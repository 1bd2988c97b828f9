package blobtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// trickyKeys are unsorted, and none is a folder of another. Some contain characters that sort before the slash: a
// walk through a tree of folders does not visit such keys in the order of keys. Others contain characters that are
// special in URLs, shells and paths.
var trickyKeys = []string{
	"a/x", "a-b/x", "a.b/x", "a b/x", "a0", "a!/y/z", "a/y/deep/er", "a+", "a,c", "a/-", "a/.hidden",
	"t=x/w=y/1.json", "t=x/w=y/10.json", "t=x/w=y/2.json", "t=x-y/w=y/1.json", "t=x/w=y-z/1.json",
	"p/50%25/q#frag?x=1&y:2", "p/~tilde/$dollar/*star", `p/back\slash/"quote"`, "p/..two/three...",
	"é/accent", "e\u0301/combining", "日本/語", "😀", "Z", "z", "_", "A/x",
	"n/00000000000000000001.json", "n/00000000000000000009.json", "n/00000000000000000010.json",
}

func sortedKeys() []string { return slices.Sorted(slices.Values(trickyKeys)) }

func fill(t *testing.T, s blob.Store) {
	t.Helper()
	for i, key := range trickyKeys {
		_, err := s.Create(t.Context(), key, make([]byte, i))
		require.NoError(t, err)
	}
}

func list(t require.TestingT, s blob.Store, opts blob.ListOptions) []blob.Object {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	var objects []blob.Object
	for o, err := range s.List(contextOf(t), opts) {
		require.NoError(t, err, "List %+v", opts)
		objects = append(objects, o)
	}
	return objects
}

func keys(objects []blob.Object) []string {
	list := make([]string, len(objects))
	for i, o := range objects {
		list[i] = o.Key
	}
	return list
}

func listOrder(t *testing.T, s blob.Store) {
	require.Empty(t, list(t, s, blob.ListOptions{}), "a new store is empty")
	fill(t, s)
	require.Equal(t, sortedKeys(), keys(list(t, s, blob.ListOptions{})))
}

func listNarrows(t *testing.T, s blob.Store) {
	fill(t, s)
	texts := []string{"", "a", "a/", "a/y/deep/er", "a/y/deep/er0", "t=x", "t=x/", "t=x/w=y/1", "p/50%", "日", "😀", "zz", "n/0000000000000000000", "/", "nothing/there", "a0/below/a/file"}
	for _, key := range trickyKeys {
		texts = append(texts, key, key[:len(key)/2])
	}
	for _, prefix := range texts {
		for _, after := range texts {
			want := slices.DeleteFunc(sortedKeys(), func(key string) bool {
				return !strings.HasPrefix(key, prefix) || key <= after
			})
			got := keys(list(t, s, blob.ListOptions{Prefix: prefix, StartAfter: after}))
			require.True(t, slices.Equal(want, got), "List prefix %q after %q: want %q, got %q", prefix, after, want, got)
		}
	}
}

func listLeft(t *testing.T, s blob.Store) {
	fill(t, s)
	for limit := 1; limit <= 3; limit++ {
		var got []string
		for o, err := range s.List(t.Context(), blob.ListOptions{}) {
			require.NoError(t, err)
			if got = append(got, o.Key); len(got) == limit {
				break
			}
		}
		require.Equal(t, sortedKeys()[:limit], got)
	}
	listing := s.List(t.Context(), blob.ListOptions{Prefix: "n/"})
	for range 2 {
		count := 0
		for _, err := range listing {
			require.NoError(t, err)
			count++
		}
		require.Equal(t, 3, count, "a listing can be iterated again")
	}
	for o, err := range s.List(t.Context(), blob.ListOptions{}) {
		require.NoError(t, err)
		require.NoError(t, s.Delete(t.Context(), o.Key), "the body of the loop may use the store")
	}
	require.Empty(t, list(t, s, blob.ListOptions{}))
}

func listConsistent(t *testing.T, s blob.Store) {
	const writers, each = 4, 40
	var created [writers]atomic.Int64
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if _, err := s.Create(t.Context(), fmt.Sprintf("w/%d/%d/%03d", i%5, w, i), nil); err != nil {
					t.Errorf("create: %v", err)
					return
				}
				created[w].Store(int64(i + 1))
			}
		})
	}
	for complete := false; !complete && !t.Failed(); {
		var before [writers]int64
		complete = true
		for w := range writers {
			before[w] = created[w].Load()
			complete = complete && before[w] == each
		}
		listed := keys(list(t, s, blob.ListOptions{Prefix: "w/"}))
		require.True(t, slices.IsSorted(listed), "a listing during writes is in order")
		require.Len(t, slices.Compact(slices.Clone(listed)), len(listed), "no object is listed twice")
		for w := range writers {
			for i := range before[w] {
				key := fmt.Sprintf("w/%d/%d/%03d", i%5, w, i)
				_, found := slices.BinarySearch(listed, key)
				require.True(t, found, "%q was created before the listing began, but is not in it", key)
			}
		}
	}
	wg.Wait()
}
