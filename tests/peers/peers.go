package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/servo-orchestration/servo/tests/peers/restatepeer"
	"github.com/servo-orchestration/servo/tests/peers/riverpeer"
	"github.com/servo-orchestration/servo/tests/peers/server"
	"github.com/servo-orchestration/servo/tests/peers/temporalpeer"
	"github.com/servo-orchestration/servo/tests/peers/work"
)

// peer is an engine that is compared with Servo.
type peer struct {
	// Name identifies the peer in flags; Title describes it.
	Name, Title string
	// Worker describes how tasks reach a worker. Durability describes how safely the end of a task is stored.
	Worker, Durability string
	// Server describes how the server's settings differ from their defaults. Settings are passed to the peer's program.
	Server   string
	Settings map[string]string

	start server.Start
	// If the field open is not nil, this program executes the peer's jobs by calling that function. Otherwise, a
	// Node.js program with the name in the field node executes them.
	open work.Open
	node string
	// version returns the versions of the engine and its server.
	version func(ctx context.Context, tools string) string
}

const (
	nodePeers = "node"
	// restatePartitions is less than the default of 24, because fewer partitions suit two cores better.
	restatePartitions = 2
)

// peers returns all peers. The parameter "tools" is the folder in which their servers and packages are installed.
func peers(tools string) []peer {
	postgres := new(server.Postgres)
	restate := server.Restate(filepath.Join(tools, nodePeers, "restate", "node_modules"), restatePartitions)
	temporal := server.Temporal(filepath.Join(tools, "temporal"))
	return []peer{
		{
			Name: "river", Title: "River, own dependency counter", Worker: "in process",
			Durability: "PostgreSQL, fsync", Server: "as initdb sets it", Settings: map[string]string{"workers": "50", "cooldown_ms": "1", "W3.cooldown_ms": "5", "poll_ms": "20", "W4.poll_ms": "1000"},
			start: postgres.Start, open: riverpeer.Open, version: ofModule("github.com/riverqueue/river", postgresVersion),
		},
		{
			Name: "dbos", Title: "DBOS (TypeScript), steps", Worker: "in process",
			Durability: "PostgreSQL, fsync", Server: "as initdb sets it", Settings: map[string]string{"connections": "20"},
			start: postgres.Start, node: "dbos", version: ofPackage("dbos", "@dbos-inc/dbos-sdk", postgresVersion),
		},
		{
			Name: "restate-run", Title: "Restate, run blocks", Worker: "in the handler to which the server pushes runs",
			Durability: "RocksDB, WAL fsync", Server: fmt.Sprint(restatePartitions, " partitions"),
			start: restate, open: restatepeer.Blocks,
			version: ofModule("github.com/restatedev/sdk-go", packageVersion("restate", "@restatedev/restate-server", "server")),
		},
		{
			Name: "restate-call", Title: "Restate, service calls", Worker: "apart, pushed",
			Durability: "RocksDB, WAL fsync", Server: fmt.Sprint(restatePartitions, " partitions"),
			start: restate, open: restatepeer.Calls,
			version: ofModule("github.com/restatedev/sdk-go", packageVersion("restate", "@restatedev/restate-server", "server")),
		},
		{
			Name: "temporal", Title: "Temporal development server, activities", Worker: "apart, polls",
			Durability: "SQLite, WAL, synchronous=full", Server: "history.transferProcessorMaxPollRPS 1000", Settings: map[string]string{"activities": "1000", "pollers": "16"},
			start: temporal, open: temporalpeer.Open, version: ofModule("go.temporal.io/sdk", temporalVersion),
		},
		{
			Name: "bullmq", Title: "BullMQ, flows (trees)", Worker: "in process",
			Durability: "Redis, appendfsync always", Server: "no snapshots", Settings: map[string]string{"concurrency": "50"},
			start: server.Redis, node: "bullmq", version: ofPackage("bullmq", "bullmq", redisVersion),
		},
	}
}

// servo returns the row of Servo, which is not a peer.
func servo() peer {
	return peer{Name: servoName, Title: "**Servo**", Worker: "apart, pushed", Durability: "files, fsync"}
}

const servoName = "servo"

// named returns the peer with the given name.
func named(all []peer, name string) (peer, bool) {
	i := slices.IndexFunc(all, func(p peer) bool { return p.Name == name })
	if i < 0 {
		return peer{}, false
	}
	return all[i], true
}
