// Package riverpeer executes workloads on River, whose open-source version has jobs but no dependencies. This package
// adds dependencies as a user of River would: for each task with several upstreams, a table counts the upstreams that
// have not ended. One transaction completes the job (JobCompleteTx, as River's documentation recommends), decrements
// the counters of its downstreams, and inserts the jobs of those that became ready. So no task is lost or executed
// twice.
//
// The upstreams of a fan-in decrement its counter one after the other, because each holds the row lock until its commit
// is flushed. To hold the lock for a short time only, the decrement is the last statement of a transaction.
package riverpeer

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

const schema = `create table waiting (
	workload text, run int, task int, tasks int not null, primary key (workload, run, task)
)`

// The rows are locked in order, so that two transactions that decrement the same counters do not
// deadlock.
const countDown = `with locked as (
	select task from waiting where workload = $1 and run = $2 and task = any($3) order by task for update
)
update waiting w set tasks = w.tasks - 1 from locked
where w.workload = $1 and w.run = $2 and w.task = locked.task
returning w.task, w.tasks`

type args struct {
	Workload string `json:"workload"`
	Run      int    `json:"run"`
	Task     int    `json:"task"`
}

// Kind implements river.JobArgs.
func (args) Kind() string { return "task" }

type engine struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	ended  chan struct{} // one for each run
}

type worker struct {
	river.WorkerDefaults[args]

	book work.Book
	*engine
}

// Open implements work.Open. Settings: "workers" is the number of concurrent tasks, "cooldown_ms"
// and "poll_ms" are the minimum and maximum time between two fetches of jobs.
func Open(ctx context.Context, job work.Job, book work.Book) (work.Engine, error) {
	workers, err := job.Setting("workers")
	if err != nil {
		return nil, err
	}
	cooldown, err := job.Setting("cooldown_ms")
	if err != nil {
		return nil, err
	}
	poll, err := job.Setting("poll_ms")
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(job.Server)
	if err != nil {
		return nil, err
	}
	const own = 10 // connections of River itself, in addition to the tasks' transactions
	config.MaxConns = int32(workers + own)
	e := &engine{ended: make(chan struct{}, job.Runs+work.Warming().Runs)}
	if e.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	driver := riverpgxv5.New(e.pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, fmt.Errorf("create River's tables: %w", err)
	}
	if _, err := e.pool.Exec(ctx, schema); err != nil {
		return nil, err
	}
	registry := river.NewWorkers()
	river.AddWorker(registry, &worker{book: book, engine: e})
	e.client, err = river.NewClient(driver, &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Workers:           registry,
		FetchCooldown:     time.Duration(cooldown) * time.Millisecond,
		FetchPollInterval: time.Duration(poll) * time.Millisecond,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return nil, err
	}
	return e, e.client.Start(ctx)
}

func (e *engine) Close() error {
	err := e.client.Stop(context.Background())
	e.pool.Close()
	return err
}

// Do implements work.Engine.
func (e *engine) Do(ctx context.Context, entry *work.Entry) error {
	if err := entry.Each(func(run int) error { return e.request(ctx, entry, run) }); err != nil {
		return err
	}
	for range entry.Runs {
		select {
		case <-e.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// request starts a run: it inserts the counters of the tasks with several upstreams, and the job of the first task.
func (e *engine) request(ctx context.Context, entry *work.Entry, run int) error {
	var tasks, waiting []int
	for task, after := range entry.After {
		if len(after) > 1 {
			tasks, waiting = append(tasks, task), append(waiting, len(after))
		}
	}
	return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		if len(tasks) > 0 {
			_, err := tx.Exec(ctx, `insert into waiting select $1, $2, * from unnest($3::int[], $4::int[])`,
				entry.Workload, run, tasks, waiting)
			if err != nil {
				return err
			}
		}
		_, err := e.client.InsertTx(ctx, tx, args{Workload: entry.Workload, Run: run}, nil)
		return err
	})
}

// Work implements river.Worker.
func (w *worker) Work(ctx context.Context, job *river.Job[args]) error {
	entry := w.book[job.Args.Workload]
	entry.Execute(job.Args.Run, job.Args.Task)
	next := entry.Next[job.Args.Task]
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
			return err
		}
		return w.release(ctx, tx, entry, job.Args, next)
	})
	if err == nil && len(next) == 0 {
		w.ended <- struct{}{}
	}
	return err
}

// release is called when a task has ended. It inserts the jobs of the downstreams that have become ready.
func (e *engine) release(ctx context.Context, tx pgx.Tx, entry *work.Entry, done args, next []int) error {
	var ready []river.InsertManyParams
	var joins []int
	for _, task := range next {
		if len(entry.After[task]) > 1 {
			joins = append(joins, task)
			continue
		}
		ready = append(ready, jobOf(done, task))
	}
	if len(joins) > 0 {
		rows, err := tx.Query(ctx, countDown, done.Workload, done.Run, joins)
		if err != nil {
			return err
		}
		var task, waiting int
		_, err = pgx.ForEachRow(rows, []any{&task, &waiting}, func() error {
			if waiting == 0 {
				ready = append(ready, jobOf(done, task))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(ready) == 0 {
		return nil
	}
	_, err := e.client.InsertManyFastTx(ctx, tx, ready)
	return err
}

func jobOf(of args, task int) river.InsertManyParams {
	of.Task = task
	return river.InsertManyParams{Args: of}
}
