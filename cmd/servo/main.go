// Command servo runs Servo on one machine: see `servo --help`.
package main

import (
	"os"

	"github.com/servo-orchestration/servo/cmd/internal/host"
)

func main() { os.Exit(host.Run(host.Cloud{})) }
