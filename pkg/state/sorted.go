package state

import "github.com/tidwall/btree"

// sorted is a copy-on-write set of items in order. Like [Table], it is an interface so that packages
// that use a state do not compile its trees.
type sorted[T any] interface {
	Set(item T) (replaced T, ok bool)
	Delete(item T) (deleted T, ok bool)
	Ascend(from T, yield func(T) bool)
	// First returns the first item that is not less than the parameter "from". Unlike Ascend, it needs no closure, and
	// so no allocation in the caller.
	First(from T) (T, bool)
	Scan(yield func(T) bool)
	Min() (T, bool)
	Max() (T, bool)
	Len() int
	Items() []T
	copy() sorted[T]
}

type sortedTree[T any] struct{ *btree.BTreeG[T] }

func newSorted[T any](less func(a, b T) bool) sorted[T] {
	return sortedTree[T]{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (t sortedTree[T]) First(from T) (first T, ok bool) {
	t.Ascend(from, func(item T) bool {
		first, ok = item, true
		return false
	})
	return first, ok
}

func (t sortedTree[T]) copy() sorted[T] { return sortedTree[T]{t.Copy()} }

// byText is a copy-on-write map in the order of its keys.
type byText[V any] interface {
	Get(key string) (V, bool)
	Set(key string, value V) (replaced V, ok bool)
	Delete(key string) (deleted V, ok bool)
	Keys() []string
	Values() []V
	copy() byText[V]
}

type textTree[V any] struct{ *btree.Map[string, V] }

func newByText[V any]() byText[V] { return textTree[V]{&btree.Map[string, V]{}} }

func (t textTree[V]) copy() byText[V] { return textTree[V]{t.Copy()} }
