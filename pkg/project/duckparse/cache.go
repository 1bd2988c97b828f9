package duckparse

import (
	"context"
	"crypto/sha256"
	"sync"

	"github.com/servo-orchestration/servo/pkg/project"
)

// Cache parses queries, and keeps the results of the last load of a project. It opens DuckDB only to parse queries
// that the last load did not contain. The zero value is empty.
type Cache struct {
	mu         sync.Mutex
	known, now map[[sha256.Size]byte]project.Parsed
	parser     *Parser
}

// Parse is a [project.SQLParser].
func (c *Cache) Parse(ctx context.Context, queries []string) ([]project.Parsed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	parsed := make([]project.Parsed, len(queries))
	hashes := make([][sha256.Size]byte, len(queries))
	var unknown []string
	var at []int
	for i, query := range queries {
		hashes[i] = sha256.Sum256([]byte(query))
		p, ok := c.known[hashes[i]]
		if !ok {
			p, ok = c.now[hashes[i]]
		}
		if parsed[i] = p; !ok {
			unknown, at = append(unknown, query), append(at, i)
		}
	}
	if len(unknown) > 0 {
		if err := c.open(ctx); err != nil {
			return nil, err
		}
		found, err := c.parser.Parse(ctx, unknown)
		if err != nil {
			return nil, err
		}
		for i, p := range found {
			parsed[at[i]] = p
		}
	}
	if c.now == nil {
		c.now = map[[sha256.Size]byte]project.Parsed{}
	}
	for i, hash := range hashes {
		c.now[hash] = parsed[i]
	}
	return parsed, nil
}

// Mixings is a [project.BatchChecker]. Few assets set batch, so Cache does not cache these results.
func (c *Cache) Mixings(ctx context.Context, queries []project.BatchQuery) ([][]project.Mixing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	return c.parser.Mixings(ctx, queries)
}

// open opens DuckDB if it is not open yet.
func (c *Cache) open(ctx context.Context) error {
	if c.parser != nil {
		return nil
	}
	parser, err := Open(ctx)
	if err == nil {
		c.parser = parser
	}
	return err
}

// End ends a load: it closes DuckDB, and removes the results of all queries that this load did not contain.
func (c *Cache) End() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.now = c.now, nil
	if c.parser == nil {
		return nil
	}
	err := c.parser.Close()
	c.parser = nil
	return err
}
