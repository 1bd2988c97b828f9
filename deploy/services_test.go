package deploy_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
)

const (
	servicesName = "google_cloud_run_v2_service.services"
	workersName  = "google_cloud_run_v2_service.workers"
)

var sidecars = map[string]string{"metrics_sidecar": `"i/metrics"`, "traces_sidecar": `"i/traces"`}

// The sweeper is idle between requests, which come every minute. If a CPU stayed allocated between requests, one
// instance would be billed around the clock.
func TestSweeperIsBilledPerRequest(t *testing.T) {
	p := installed(t, sidecars)
	template := p.within(p.blocks[servicesName].Body, "template")
	for name, each := range p.instances(servicesName) {
		containers := nested(template, "containers")
		require.Len(t, containers, 3)
		for _, container := range containers {
			if name == "sweeper" && p.attribute(container, each, "name").AsString() == "metrics" {
				continue // the module gives the sweeper no sidecar for metrics: see the end of this loop
			}
			idle := p.attribute(p.within(container, "resources"), each, "cpu_idle")
			require.Equal(t, name == "sweeper", idle.True(), "%s: billing is per instance", name)
		}
		limits := p.attribute(p.within(containers[0], "resources"), each, "limits").AsValueMap()
		require.Equal(t, "1", limits["cpu"].AsString())
		memory := "1Gi"
		if name == "sweeper" {
			memory = "512Mi"
		}
		require.Equal(t, memory, limits["memory"].AsString())
		reads := 1
		if name == "sweeper" {
			reads = 0
		}
		require.Equal(t, reads, p.attribute(dynamic(t, template, "containers", "metrics_sidecar"), each, "for_each").LengthInt(),
			"%s: the sidecar needs a CPU between requests", name)
	}
}

// dynamic finds the dynamic block of the given kind whose for_each uses the given variable, and returns the body of the
// block.
func dynamic(t *testing.T, body *hclsyntax.Body, kind, variable string) *hclsyntax.Body {
	t.Helper()
	for _, b := range body.Blocks {
		if b.Type != "dynamic" || b.Labels[0] != kind {
			continue
		}
		for _, traversal := range b.Body.Attributes["for_each"].Expr.Variables() {
			if nameOf(traversal) == "var."+variable {
				return b.Body
			}
		}
	}
	require.Fail(t, "no such block", "%s by %s", kind, variable)
	return nil
}

// A long task continues after its request has ended. If its instance had a CPU only during requests, the task and its
// heartbeats would stop.
func TestWorkersHaveACPUBetweenRequests(t *testing.T) {
	p := installed(t, sidecars)
	for _, container := range nested(p.within(p.blocks[workersName].Body, "template"), "containers") {
		require.True(t, p.attribute(p.within(container, "resources"), nil, "cpu_idle").False())
	}
}

const threeWorkers = `{
  default = {}
  gpu     = { image = "i/gpu", cpu = "8", memory = "32Gi", concurrency = 1, instances = 3 }
  far     = { url = "https://far.example", instances = 600 }
}`

func TestEachQueueHasItsOwnWorker(t *testing.T) {
	p := installed(t, map[string]string{"workers": threeWorkers})
	require.Empty(t, p.refused)
	workers := p.instances(workersName)
	require.Len(t, workers, 2, "the third worker runs elsewhere")
	body := p.blocks[workersName].Body
	for queue, want := range map[string]struct{ name, image, concurrency, memory, threads string }{
		"default": {"servo-worker", "i/w", "4", "512MB", "2"},
		"gpu":     {"servo-worker-gpu", "i/gpu", "1", "16384MB", "8"},
	} {
		require.Equal(t, want.name, p.attribute(body, workers[queue], "name").AsString())
		container := p.within(body, "template", "containers")
		require.Equal(t, want.image, p.attribute(container, workers[queue], "image").AsString())
		args := list(p.attribute(container, workers[queue], "args"))
		for flag, value := range map[string]string{"--concurrency": want.concurrency, "--memory-limit": want.memory, "--threads": want.threads} {
			require.Contains(t, strings.Join(args, " "), flag+" "+value+" ", queue)
		}
	}
	environment := p.resolve("local.environment").GetAttr("dispatcher")
	require.Equal(t, "https://servo-worker-123456789012.europe-west1.run.app", environment.GetAttr("SERVO_WORKER_URL").AsString())
	require.Equal(t, "far=https://far.example,gpu=https://servo-worker-gpu-123456789012.europe-west1.run.app", environment.GetAttr("SERVO_WORKER_URLS").AsString())
	require.Empty(t, installed(t, nil).resolve("local.environment").GetAttr("dispatcher").GetAttr("SERVO_WORKER_URLS").AsString())
}

// A worker has the keys that sign the requests to it, but not the keys that sign reports.
func TestWorkersCannotReadReportKeys(t *testing.T) {
	p := installed(t, nil)
	const rights = "google_secret_manager_secret_iam_member.keys"
	read := map[string][]string{}
	for _, each := range p.instances(rights) {
		member := p.attribute(p.blocks[rights].Body, each, "member").AsString()
		account, _, _ := strings.Cut(strings.TrimPrefix(member, "serviceAccount:"), "@")
		read[account] = append(read[account], p.attribute(p.blocks[rights].Body, each, "secret_id").AsString())
	}
	require.ElementsMatch(t, []string{"servo-keys", "servo-worker-keys"}, read["servo-dispatcher"])
	require.Equal(t, []string{"servo-worker-keys"}, read["servo-worker"])
	require.Len(t, read, 2)
	template := p.within(p.blocks[workersName].Body, "template")
	require.Equal(t, "servo-worker-keys", p.attribute(p.within(template, "volumes", "secret"), nil, "secret").AsString())
	mounted := p.attribute(p.within(template, "containers", "volume_mounts"), nil, "mount_path").AsString()
	worker := p.instances(workersName)["default"]
	require.Contains(t, strings.Join(list(p.attribute(p.within(template, "containers"), worker, "args")), " "), "--keys "+mounted+"/keys.json ")

	dispatcher := p.resolve("local.environment").GetAttr("dispatcher")
	for variable, secret := range map[string]string{"SERVO_KEYS": "keys", "SERVO_WORKER_KEYS": "worker-keys"} {
		require.Equal(t, "/secrets/"+secret+"/keys.json", dispatcher.GetAttr(variable).AsString())
		require.Equal(t, "servo-"+secret, p.resolve("local.secrets").GetAttr(secret).AsString())
	}
}

// Cloud Run answers 429 when its instances are full, and Cloud Tasks then slows down the whole queue. A queue must
// therefore push no more tasks at once than the instances of its worker accept.
func TestQueuesPushWithinWorkerCapacity(t *testing.T) {
	p := installed(t, map[string]string{"workers": threeWorkers})
	const queues = "google_cloud_tasks_queue.this"
	limits := map[string]int64{}
	for queue, each := range p.instances(queues) {
		require.Equal(t, "servo-"+queue, p.attribute(p.blocks[queues].Body, each, "name").AsString())
		limits[queue], _ = p.attribute(p.within(p.blocks[queues].Body, "rate_limits"), each, "max_concurrent_dispatches").AsBigFloat().Int64()
	}
	require.Equal(t, map[string]int64{"default": 80, "gpu": 3, "far": 1000, "timers": 1000}, limits)
	for queue, each := range p.instances(queues) {
		retries := p.within(p.blocks[queues].Body, "retry_config")
		attempts, _ := p.attribute(retries, each, "max_attempts").AsBigFloat().Int64()
		require.Equal(t, queue == "timers", attempts == -1, "%s: the queue must drop a rejected envelope, so that a sweep seals a new one", queue)
	}
	for queue, each := range p.instances(workersName) {
		template := p.within(p.blocks[workersName].Body, "template")
		concurrency, _ := p.attribute(template, each, "max_instance_request_concurrency").AsBigFloat().Int64()
		instances, _ := p.attribute(p.within(template, "scaling"), each, "max_instance_count").AsBigFloat().Int64()
		require.LessOrEqual(t, limits[queue], concurrency*instances)
	}
}

func TestImpossibleWorkersAreRejected(t *testing.T) {
	for workers, want := range map[string]string{
		`{ gpu = {} }`:                                           "named default",
		`{ default = {}, GPU = {} }`:                             "lower-case letters",
		`{ default = {}, a_b = {} }`:                             "lower-case letters",
		`{ default = {}, "gpu-" = {} }`:                          "lower-case letters",
		`{ default = {}, timers = {} }`:                          "The name timers is taken",
		`{ default = { memory = "4GB" } }`:                       "memory like",
		`{ default = { cpu = "0.5" } }`:                          "a cpu of",
		`{ default = { always_on = 21 } }`:                       "always_on",
		`{ default = { concurrency = 0 } }`:                      "a concurrency of 1",
		`{ default = { url = "http://w" } }`:                     "begins with https",
		`{ default = { url = "https://w,x" } }`:                  "begins with https",
		`{ default = {}, ` + strings.Repeat("a", 27) + ` = {} }`: "up to 26",
	} {
		refused := installed(t, map[string]string{"workers": workers}).refused
		require.Len(t, refused, 1, workers)
		require.Contains(t, refused[0], want, workers)
	}
	longest := installed(t, map[string]string{"prefix": `"` + strings.Repeat("p", 15) + `"`, "workers": `{ default = {}, ` + strings.Repeat("a", 26) + ` = {} }`})
	require.Empty(t, longest.refused)
	for _, name := range longest.resolve("local.worker_name").AsValueMap() {
		require.LessOrEqual(t, len(name.AsString()), 49, "a service's name")
		require.LessOrEqual(t, len(name.AsString()+"-123456789012"), 63, "a label of its host name")
	}
}

// Cloud Run logs the URL of every request, so the URL must not authorize a callback.
func TestCallbackURLsHaveNoSignature(t *testing.T) {
	keys := contract.Keyring{Current: "k", Secrets: map[string][]byte{"k": []byte(strings.Repeat("s", contract.MinSecret))}}
	url, authorization := contract.SignCallback("https://d.example", contract.Callback{
		Domain: ids.Domain{Tenant: "acme", Workspace: "prod"}, RunID: "r", TaskKey: "a/b", Attempt: 1, AttemptID: "i", Verb: contract.VerbFinished, Expires: event.Time(1),
	}, keys)
	_, signature, _ := strings.Cut(authorization, " ")
	require.Greater(t, len(signature), 40)
	require.NotContains(t, url, signature)
	require.NotContains(t, url, "sig=")
}

// The cache of domain states gets half of an instance's memory. If its size were constant, a small instance would run
// out of memory, and a larger instance could not cache more.
func TestCachesFollowTheMemoryOfInstances(t *testing.T) {
	p := installed(t, map[string]string{"services": `{ compactor = { memory = "512Mi" }, dispatcher = { memory = "4Gi" } }`})
	require.Empty(t, p.refused)
	for name, want := range map[string]string{"compactor": "268435456", "dispatcher": "2147483648"} {
		require.Equal(t, want, p.resolve("local.environment").GetAttr(name).AsValueMap()["SERVO_CACHE_BYTES"].AsString(), name)
	}
}

// help returns a program's help text.
func help(t *testing.T, run func(context.Context, service.Process) int) string {
	t.Helper()
	var out strings.Builder
	require.Zero(t, run(t.Context(), service.Process{Args: []string{"--help"}, Getenv: func(string) string { return "" }, Stderr: &out, Clock: clock.System{}}))
	return out.String()
}

func TestProgramsAcceptTheirArguments(t *testing.T) {
	p := installed(t, nil)
	flags := map[string]string{
		"compactor": help(t, service.RunCompactor), "dispatcher": help(t, service.RunDispatcher), "sweeper": help(t, service.RunSweeper),
	}
	container := p.within(p.blocks[servicesName].Body, "template", "containers")
	environment := dynamicOf(t, container, "env")
	for name, each := range p.instances(servicesName) {
		variables := p.attribute(environment, each, "for_each").AsValueMap()
		require.Greater(t, len(variables), 6)
		for variable := range variables {
			flag := "  -" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, "SERVO_")), "_", "-") + " "
			require.Contains(t, flags[name], flag, "%s of the %s", variable, name)
		}
	}
	var out strings.Builder
	require.Zero(t, cli.Main(t.Context(), cli.Env{Args: []string{"worker", "--help"}, OpenTraces: otlp.Open, Stdout: &out, Stderr: &out, Clock: clock.System{}, Dir: t.TempDir()}))
	text, err := os.ReadFile("terraform/services.tf")
	require.NoError(t, err)
	args := regexp.MustCompile(`"(--[a-z-]+)"`).FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(args), 8)
	for _, arg := range args {
		require.Contains(t, out.String(), arg[1]+" ", "a flag of servo worker")
	}
}

func dynamicOf(t *testing.T, body *hclsyntax.Body, kind string) *hclsyntax.Body {
	t.Helper()
	for _, b := range body.Blocks {
		if b.Type == "dynamic" && b.Labels[0] == kind {
			return b.Body
		}
	}
	require.Fail(t, "no such block", kind)
	return nil
}
