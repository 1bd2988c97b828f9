// Command servo-cloud is servo for the stores of a cloud: wherever servo takes a
// folder of state, it takes gs://BUCKET as well. See `servo-cloud --help`.
//
// It is a program of its own because the clients of a cloud take 30 MiB of memory
// that servo on a laptop does without.
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
