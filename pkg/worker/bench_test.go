package worker_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// BenchmarkTask measures a worker's overhead per task. It makes sequential deliveries with two HTTP callbacks each,
// and uses a store in memory.
func BenchmarkTask(b *testing.B) {
	for name, work := range map[string]plan.Work{"true": {Command: []string{"true"}}, "select": query("SELECT 1 AS x")} {
		b.Run(name, func(b *testing.B) {
			control := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "{}") }))
			defer control.Close()
			store := memblob.New(memblob.Options{})
			tasks := make([]plan.Task, b.N)
			for i := range tasks {
				partition := ids.Partition{"n": fmt.Sprint(i)}
				tasks[i] = task(ids.TaskKey(ids.AssetKey{Namespace: "a", Name: "b"}, partition), partition.Key(), nil)
			}
			p := &plan.Plan{SchemaVersion: 1, Assets: map[string]plan.Work{"a/b": work}, Tasks: tasks}
			data, sha, err := p.Encode()
			require.NoError(b, err)
			_, err = store.Create(b.Context(), plan.Ref(domain, sha), data)
			require.NoError(b, err)
			var nonce atomic.Int64
			wk, err := worker.Open(worker.Config{
				Store: store, Clock: clock.System{}, Keyring: keys, WorkerID: "w", ScratchDir: b.TempDir(),
				Nonce: func() string { return fmt.Sprint(nonce.Add(1)) }, Logger: slog.New(slog.DiscardHandler),
				Environ: []string{"PATH=/usr/bin:/bin"},
			})
			require.NoError(b, err)
			defer func() { require.NoError(b, wk.Close(b.Context())) }()
			server := httptest.NewServer(wk.Handler())
			defer server.Close()
			bodies := make([][]byte, b.N)
			for i := range bodies {
				bodies[i] = benchEnvelope(b, control.URL, plan.Ref(domain, sha), &tasks[i])
			}
			b.ResetTimer()
			for _, body := range bodies {
				response, err := http.Post(server.URL+"/execute", "application/json", bytes.NewReader(body))
				require.NoError(b, err)
				require.Equal(b, http.StatusOK, response.StatusCode)
				require.NoError(b, response.Body.Close())
			}
		})
	}
}

func benchEnvelope(b *testing.B, url, ref string, t *plan.Task) []byte {
	b.Helper()
	return signedJSON(b, &contract.Envelope{
		ContractVersion: contract.Version, Tenant: domain.Tenant, Workspace: domain.Workspace, RunID: runID,
		TaskKey: t.TaskKey, Attempt: 1, AttemptID: ids.AttemptID(domain, runID, t.TaskKey, 1), PlanRef: ref,
		AssetKey: t.AssetKey, PartitionKey: t.PartitionKey,
		MaterializationID: ids.MaterializationID(domain, runID, t.TaskKey), HeartbeatTimeoutSec: 60,
		Callbacks: contract.Callbacks{Started: url, Heartbeat: url, Finished: url},
	}, event.At(epoch.AddDate(100, 0, 0)))
}
