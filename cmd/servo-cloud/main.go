// Command servo-cloud is servo with support for cloud storage: it accepts gs://BUCKET wherever
// servo accepts a state folder. See `servo-cloud --help`.
//
// servo-cloud is a separate program because the cloud's client libraries take 30 MiB of memory, which servo on a
// laptop should not spend.
package main

import (
	"os"

	"github.com/servo-orchestration/servo/cmd/internal/host"
	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/secret/gcpsecret"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
)

func main() {
	os.Exit(host.Run(host.Cloud{OpenStore: binding.OpenStore, OpenTraces: otlp.Open, Secrets: gcpsecret.Source()}))
}
