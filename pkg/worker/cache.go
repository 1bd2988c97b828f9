package worker

import (
	"container/list"
	"sync"
)

// cache is an LRU cache with a budget in bytes.
type cache[V any] struct {
	budget int64

	mu      sync.Mutex
	used    int64
	entries map[string]*list.Element
	order   *list.List // most recently used first
}

type cached[V any] struct {
	key   string
	value V
	bytes int64
}

func newCache[V any](budget int64) *cache[V] {
	return &cache[V]{budget: budget, entries: map[string]*list.Element{}, order: list.New()}
}

func (c *cache[V]) get(key string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.entries[key]
	if !ok {
		var none V
		return none, false
	}
	c.order.MoveToFront(element)
	return entryOf[V](element).value, true
}

// put adds a value and evicts the least recently used ones. It ignores a value that is larger than
// the budget.
func (c *cache[V]) put(key string, value V, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.entries[key]; ok || bytes > c.budget {
		return
	}
	c.entries[key] = c.order.PushFront(cached[V]{key, value, bytes})
	c.used += bytes
	for c.used > c.budget {
		last := c.order.Back()
		entry := entryOf[V](last)
		c.order.Remove(last)
		delete(c.entries, entry.key)
		c.used -= entry.bytes
	}
}

func entryOf[V any](element *list.Element) cached[V] {
	entry, _ := element.Value.(cached[V]) // put adds only values of this type
	return entry
}
