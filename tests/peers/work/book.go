package work

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Entry is a job with what a peer's program asks of it.
type Entry struct {
	Job
	Next   [][]int
	Levels [][]int
	*Check
}

// Book has the jobs that a program is to do, by workload: tasks are told which by name.
type Book map[string]*Entry

func (b Book) add(job Job) error {
	levels, err := job.Levels()
	if err != nil {
		return err
	}
	b[job.Workload] = &Entry{Job: job, Next: job.Next(), Levels: levels, Check: NewCheck(job)}
	return nil
}

// Engine is a peer that is connected to its server and has its workers running.
type Engine interface {
	// Do requests all runs of a job, so many at once as it says, and returns when the peer
	// has recorded that all have ended.
	Do(ctx context.Context, e *Entry) error
	Close() error
}

// Open starts an engine for the tasks of a book.
type Open func(ctx context.Context, job Job, book Book) (Engine, error)

// Serve does the job that it reads, and writes what was done. Then it has nothing to do
// until there is no more to read: what it takes meanwhile can be measured.
func Serve(ctx context.Context, in io.Reader, out io.Writer, open Open) error {
	var order Order
	if err := json.NewDecoder(in).Decode(&order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	book, job, warming := Book{}, order.Job, order.Warming
	for _, j := range []Job{warming, job} {
		if err := book.add(j); err != nil {
			return err
		}
	}
	engine, err := open(ctx, job, book)
	if err != nil {
		return err
	}
	defer engine.Close() // what is measured is recorded by then
	if err := engine.Do(ctx, book[warming.Workload]); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	flushed, began := Flushes(job.Device), time.Now()
	if err := engine.Do(ctx, book[job.Workload]); err != nil {
		return err
	}
	took := time.Since(began)
	done, err := book[job.Workload].Done()
	if err != nil {
		return err
	}
	done.Seconds, done.Flushes = took.Seconds(), Flushes(job.Device)-flushed
	if err := json.NewEncoder(out).Encode(done); err != nil {
		return err
	}
	return awaitEnd(ctx, in)
}

// awaitEnd returns at the end of what is read.
func awaitEnd(ctx context.Context, in io.Reader) error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Setting is a number among a job's settings.
func (j Job) Setting(name string) (int, error) {
	var n int
	if _, err := fmt.Sscan(j.Settings[name], &n); err != nil {
		return 0, fmt.Errorf("the setting %s is %q, which is no number", name, j.Settings[name])
	}
	return n, nil
}
