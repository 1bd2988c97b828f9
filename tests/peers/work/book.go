package work

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Entry is a job with the task graph and the check that a peer's program derives from the job.
type Entry struct {
	Job
	Next   [][]int
	Levels [][]int
	*Check
}

// Book maps the name of a workload to the job of a program. The arguments of a task name its workload.
type Book map[string]*Entry

func (b Book) add(job Job) error {
	levels, err := job.Levels()
	if err != nil {
		return err
	}
	b[job.Workload] = &Entry{Job: job, Next: job.Next(), Levels: levels, Check: NewCheck(job)}
	return nil
}

// Engine is a peer with a connection to its server and running workers.
type Engine interface {
	// Do requests all runs of a job, at most Job.AtOnce at the same time. It returns when the peer has recorded the end
	// of all runs.
	Do(ctx context.Context, e *Entry) error
	Close() error
}

// Open starts an engine for the tasks of a book.
type Open func(ctx context.Context, job Job, book Book) (Engine, error)

// Serve reads an order, executes its job and writes the result. Then it stays idle until the end of
// its input, so that the idle process can be measured.
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
	defer engine.Close() // after the result is written
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

// awaitEnd waits for the end of the input.
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

// Setting returns a setting of the job as a number.
func (j Job) Setting(name string) (int, error) {
	var n int
	if _, err := fmt.Sscan(j.Settings[name], &n); err != nil {
		return 0, fmt.Errorf("setting %s is %q, which is not a number", name, j.Settings[name])
	}
	return n, nil
}
