package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
	"github.com/servo-orchestration/servo/pkg/table/parquetfile"
	"github.com/servo-orchestration/servo/pkg/tiers"
	"github.com/servo-orchestration/servo/pkg/worker"
)

var silent = slog.New(slog.DiscardHandler)

// service returns the environment of a service's main function.
func (p *process) service(args ...string) service.Process {
	w := p.machine.w
	return service.Process{
		Args:   append([]string{"--store", "sim", "--log-level", "error", "--listen", "127.0.0.1:1"}, args...),
		Getenv: func(string) string { return "" }, Stderr: io.Discard, Clock: machineClock{p}, Instance: p.id,
		Network: network{p}, Entropy: p.entropy, Codec: w.codec,
		Compactor: compactor.Options{
			Tiers: tiers.Options{
				MaxDeltas: w.cfg.MaxDeltas, MaxInline: w.cfg.MaxInline, MinBase: w.cfg.MinBase, MaxSegment: w.cfg.MaxSegment,
				KeepEntries: time.Duration(w.cfg.KeepEntries) * time.Minute, KeepRuns: time.Duration(w.cfg.KeepRuns) * time.Minute,
			},
			MaxBatch: w.cfg.MaxBatch, KeepLedger: w.cfg.keepLedger(), ArchiveSpan: time.Duration(w.cfg.ArchiveSpan) * time.Second,
			Retention: w.cfg.retention(), Decode: p.decode(),
		},
		Send:      p.sendAlert,
		OpenStore: func(context.Context, string) (blob.Store, io.Closer, error) { return store{p}, io.NopCloser(nil), nil },
		OpenQueue: func(context.Context, service.QueueOptions) (queue.Queue, func(context.Context) error, error) {
			return queueClient{p}, nil, nil
		},
	}
}

func runCompactor(ctx context.Context, p *process) {
	service.RunCompactor(ctx, p.service("--dispatcher-url", "http://dispatcher"))
}

func runDispatcher(ctx context.Context, p *process) {
	service.RunDispatcher(ctx, p.service("--compactor-url", "http://compactor", "--worker-url", "http://worker",
		"--url", "http://dispatcher", "--keys", p.machine.w.bubble.Keys))
}

func runSweeper(ctx context.Context, p *process) {
	service.RunSweeper(ctx, p.service("--compactor-url", "http://compactor", "--dispatcher-url", "http://dispatcher",
		"--every", "60s", "--full-every", fmt.Sprintf("%dm", p.machine.w.cfg.FullEvery)))
}

// defaultSlots is how many tasks a worker of a small world executes at once.
const defaultSlots = 8

// runWorker runs a worker. The workload determines the outcomes of its tasks.
func runWorker(ctx context.Context, p *process) {
	w := p.machine.w
	source := ids.NewSource(p.now, p.entropy)
	merging := w.cfg.merging()
	merging.NewID = source.New
	opened, err := worker.Open(worker.Config{
		Store: store{p}, Clock: machineClock{p}, Nonce: source.New, Keyring: w.keys, HTTPClient: network{p}.Client(),
		WorkerID: p.id, ScratchDir: w.scratch, Logger: silent, MaxConcurrent: cmp.Or(w.cfg.Slots, defaultSlots), HeartbeatEvery: w.cfg.heartbeatEvery(),
		Executor: func(ctx context.Context, e worker.Execution) error { return w.load.execute(ctx, p, e) },
		Checker:  w.load.check, Merging: merging,
	})
	if err != nil {
		panic(fmt.Sprintf("sim: open worker: %v", err))
	}
	_ = endpoint{p}.Serve(ctx, ctx, opened.Handler()) // cannot fail
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = opened.Close(gone) // do not wait: the process was killed
}

// runReader reads the state repeatedly, and lets the oracle compare it with the published state.
func runReader(ctx context.Context, p *process) {
	w := p.machine.w
	readers := make([]*snapshot.Reader, len(w.domains))
	for i, d := range w.domains {
		readers[i] = p.handle(d).Reader()
	}
	for i := 0; ctx.Err() == nil; i++ {
		d := w.domains[i%len(w.domains)]
		snap, err := readers[i%len(readers)].Current(ctx)
		if ctx.Err() != nil {
			return
		}
		k := &call{proc: p, label: "read " + d.String()}
		k.begin = func() {
			if err == nil {
				w.oracle.checkRead(p, d, snap)
			} else if corrupt := (*manifest.CorruptError)(nil); errors.As(err, &corrupt) || errors.Is(err, manifest.ErrMissing) {
				w.oracle.handleDamaged(p, d, err)
			}
			close(k.done)
		}
		if w.park(ctx, k) != nil {
			return
		}
		if (machineClock{p}).Sleep(ctx, 5*time.Second) != nil {
			return
		}
	}
}

// write writes a task's output.
func write(folder, content string) error {
	return os.WriteFile(filepath.Join(folder, "made.txt"), []byte(content+"\n"), 0o600)
}

// footers returns Parquet files without rows, with different schemas.
var footers = sync.OnceValue(func() [][]byte {
	runs, err := table.Of[state.RunKey]("run_keys").Encode(&parquetfile.Format{}, nil)
	limits, err2 := table.Of[state.Limit]("limits").Encode(&parquetfile.Format{}, nil)
	if err := errors.Join(err, err2); err != nil {
		panic(fmt.Sprintf("sim: encode a Parquet file: %v", err))
	}
	return [][]byte{runs, limits}
})

// writeParquet adds a Parquet file to every fourth output, so that the schemas of an asset's
// partitions differ.
func writeParquet(folder, runID, taskKey string) error {
	draw := hashOf("parquet " + runID + taskKey)
	if draw%4 != 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(folder, "made.parquet"), footers()[draw/4%2], 0o600)
}

// assetOf returns the asset of a task.
func assetOf(taskKey string) string {
	name, _, _ := strings.Cut(taskKey, "[")
	return name
}
