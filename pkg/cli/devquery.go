package cli

import (
	"context"
	"errors"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/query"
)

// queryMemory limits DuckDB's memory for a query of the HTTP API, in bytes. The query runs in the process that owns
// the state folder. The limit is small because this process also converts each row: a single row of 256 MiB needs
// several times as much memory while it is converted.
const queryMemory = 256 << 20

// openAPIQuery opens a session for a query of the HTTP API.
func (a *app) openAPIQuery(ctx context.Context, sql, asOf string) (_ api.QuerySession, shown api.Revision, err error) {
	p, err := a.settings()
	if err != nil {
		return nil, api.Revision{}, err
	}
	parts, err := a.parts(ctx, p)
	if err != nil {
		return nil, api.Revision{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, parts.Close())
		}
	}()
	m, err := revision(ctx, parts, asOf)
	if err != nil {
		return nil, api.Revision{}, err
	}
	if m != nil {
		shown = api.Revision{Number: m.Revision, Timeline: m.Timeline}
	}
	s, err := a.openQuery(ctx, p, parts, m, sql, query.Options{MemoryBytes: queryMemory})
	if err != nil {
		return nil, api.Revision{}, err
	}
	return &apiQuery{a, s, parts.Close}, shown, nil
}

// apiQuery is a session for one query.
type apiQuery struct {
	app     *app
	session *querySession
	end     func() error
}

func (q *apiQuery) QueryAtMost(ctx context.Context, limit int, sql string) (*query.Rows, error) {
	rows, err := q.session.QueryAtMost(ctx, limit, sql)
	if err != nil {
		return nil, q.app.missing(ctx, q.session.DB, sql, err)
	}
	return rows, nil
}

func (q *apiQuery) Close() error { return errors.Join(q.session.Close(), q.end()) }
