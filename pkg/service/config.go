package service

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/notify"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

// config is the configuration of a service. A service sets the fields for which it has flags.
type config struct {
	// Listen is the address to serve on. Port 0: a free port.
	Listen string
	// MetricsListen is the address to serve metrics on. "": metrics are not served.
	MetricsListen string
	// Store is the bucket or the folder of objects.
	Store string
	// LogLevel is debug, info, warn or error.
	LogLevel string

	// CompactorURL, DispatcherURL and WorkerURL are the addresses of the other services.
	CompactorURL  string
	DispatcherURL string
	WorkerURL     string
	// WorkerURLs are the addresses of workers that serve one queue each: QUEUE=URL, separated by commas.
	WorkerURLs string
	// URL is the address at which workers and the queue reach this service. "": Listen.
	URL string
	// Keys is the file of signing keys. "": keys.json in the store's folder, created if absent.
	// WorkerKeys is the file of the keys that workers have. "": Keys.
	Keys, WorkerKeys string
	// Queue is LocalQueue or projects/PROJECT/locations/LOCATION. QueuePrefix is the prefix of the names of queues at
	// that location. The queue authenticates its deliveries with tokens of the account QueueAccount for the audience
	// QueueAudience.
	Queue, QueuePrefix, QueueAccount, QueueAudience string
	// Concurrency is how many tasks are pushed to workers at once.
	Concurrency int
	// DispatchRate is how many tasks are queued per second. 0: unlimited. Weights lists how many turns tenants have in
	// each round of the fair queue: TENANT=N, separated by commas.
	DispatchRate int
	Weights      string
	// ChannelSecrets are the secrets that channels of alerts may name.
	ChannelSecrets string
	// Subscription is the subscription to pull messages from. "": messages are pushed.
	Subscription string
	// CacheBytes limits the memory of open domains: above it, idle domains are closed.
	CacheBytes int64
	// KeepRuns is how long ended runs are kept, counted from their trigger.
	KeepRuns time.Duration
	// Every is the time between sweeps, and FullEvery is the time between full sweeps. 0: sweeps run only on request.
	Every, FullEvery time.Duration

	// Callers are the accounts that may call, as ROLE=ACCOUNT, separated by commas, or AnyCaller.
	// Their tokens are issued by Issuer, with keys at IssuerKeys, for Audience.
	Callers, Audience, Issuer, IssuerKeys string
	// Identity is the account with which this service calls other services: GoogleIdentity or NoIdentity.
	Identity string

	Traces Traces
}

// kind describes one of the services.
type kind struct {
	// Name is the name of the program.
	Name string
	// Usage says in one sentence what the service does.
	Usage string
	// Flags defines the flags that only some services have.
	Flags func(*flag.FlagSet, *config)
	// Check returns the problems of those flags.
	Check func(config) []error
	// Listen is the default address.
	Listen string
}

func (c *config) checkCache() error {
	if c.CacheBytes < minCacheBytes {
		return fmt.Errorf("--cache-bytes is %d; must be %d (1 MiB) or more", c.CacheBytes, minCacheBytes)
	}
	return nil
}

// The services.
var (
	compactorKind = kind{
		Name: compactorName, Listen: "127.0.0.1:8091",
		Usage: "Folds ledger entries into the projections of every domain of a store, and publishes them.",
		Flags: func(f *flag.FlagSet, c *config) {
			f.StringVar(&c.DispatcherURL, "dispatcher-url", "", "URL of the dispatcher, which is notified of each revision; empty: no notifications")
			f.StringVar(&c.Subscription, "subscription", "", "pull the notifications of ledger entries from projects/PROJECT/subscriptions/SUBSCRIPTION; empty: they are pushed")
			f.Int64Var(&c.CacheBytes, "cache-bytes", defaultCacheBytes, "memory for the states of domains, in bytes; if they need more, idle domains are closed")
			f.DurationVar(&c.KeepRuns, "keep-runs", tiers.KeepRuns, "how long ended runs are kept after their trigger; at least 720h")
		},
		Check: func(c config) []error {
			problems := []error{checkURL("dispatcher-url", c.DispatcherURL, false), c.checkSubscription(), c.checkCache()}
			if c.KeepRuns < tiers.MinKeepRuns {
				problems = append(problems, fmt.Errorf("--keep-runs is %s; must be %s or more", c.KeepRuns, tiers.MinKeepRuns))
			}
			return problems
		},
	}
	dispatcherKind = kind{
		Name: dispatcherName, Listen: "127.0.0.1:8092",
		Usage: "Pushes tasks to workers through a queue, and receives their reports.",
		Flags: func(f *flag.FlagSet, c *config) {
			f.StringVar(&c.CompactorURL, "compactor-url", "", "URL of the compactor (required)")
			f.StringVar(&c.WorkerURL, "worker-url", "", "URL of the worker (required)")
			f.StringVar(&c.WorkerURLs, "worker-urls", "", "workers by queue, as gpu=https://gpu.example,large=https://large.example; other queues use --worker-url")
			f.StringVar(&c.URL, "url", "", "URL at which workers reach this service (default: the listen address)")
			f.StringVar(&c.Keys, "keys", "", "file of signing keys (default: "+KeysFile+" in the store's folder, created if absent)")
			f.StringVar(&c.WorkerKeys, "worker-keys", "", "file of the keys that sign envelopes. Workers need these keys. Use a different file from --keys, so that a worker's keys cannot sign reports (default: the file of --keys)")
			f.IntVar(&c.Concurrency, "concurrency", defaultConcurrency, "how many tasks the local queue pushes at once")
			f.IntVar(&c.DispatchRate, "dispatch-rate", defaultDispatchRate, "how many tasks to queue per second, fairly across tenants; 0: unlimited, in the order of arrival")
			f.StringVar(&c.Weights, "tenant-weights", "", "how many turns a tenant has in each round of the fair queue, as acme=3,globex=2; other tenants have 1")
			f.StringVar(&c.ChannelSecrets, "channel-secrets", "", "secrets that alert channels may use, as [TENANT=]gcp:projects/P/secrets/NAME, separated by commas; a * at the end matches any suffix; empty: none")
			f.StringVar(&c.Queue, "queue", LocalQueue, LocalQueue+": in this process; projects/PROJECT/locations/LOCATION: Cloud Tasks there")
			f.StringVar(&c.QueuePrefix, "queue-prefix", "", "prefix of queue names in Cloud Tasks")
			f.StringVar(&c.QueueAccount, "queue-account", "", "service account with which Cloud Tasks calls workers and this service (default: no token)")
			f.StringVar(&c.Subscription, "subscription", "", "pull the notifications of manifests from projects/PROJECT/subscriptions/SUBSCRIPTION; empty: they are pushed")
			f.Int64Var(&c.CacheBytes, "cache-bytes", defaultCacheBytes, "memory for the states of domains, in bytes; if they need more, idle domains are closed")
			f.StringVar(&c.QueueAudience, "queue-audience", "", "audience of the tokens of --queue-account (default: the called URL)")
		},
		Check: func(c config) []error {
			problems := []error{
				checkURL("compactor-url", c.CompactorURL, true), checkURL("worker-url", c.WorkerURL, true), checkURL("url", c.URL, false),
				c.checkSubscription(), c.checkCache(),
			}
			if c.Concurrency < 1 {
				problems = append(problems, fmt.Errorf("--concurrency is %d; must be 1 or more", c.Concurrency))
			}
			if c.DispatchRate < 0 {
				problems = append(problems, fmt.Errorf("--dispatch-rate is %d; must be 0 or more", c.DispatchRate))
			}
			for _, check := range []func() error{
				func() error { _, err := c.weights(); return err },
				func() error { _, err := c.workers(); return err },
				func() error { _, err := c.allowed(); return err },
			} {
				problems = append(problems, check())
			}
			for _, file := range []string{c.Keys, c.WorkerKeys} {
				if file != "" {
					_, err := ReadKeys(file)
					problems = append(problems, err)
				}
			}
			if c.Keys == "" && c.inCloud() {
				problems = append(problems, errors.New("--keys is missing: signing keys must not be in a bucket; name a file, for example one mounted from a secret"))
			}
			if c.verifies() && c.Queue == LocalQueue && (c.Identity != GoogleIdentity || c.Audience != c.URL) {
				problems = append(problems, fmt.Errorf("--callers with --queue %s: the local queue calls this service; set --identity %s and --url, and give this service's own account the role queue",
					LocalQueue, GoogleIdentity))
			}
			return append(problems, c.checkQueue()...)
		},
	}
	sweeperKind = kind{
		Name: sweeperName, Listen: "127.0.0.1:8093",
		Usage: "Folds ledger entries that were never announced, and dispatches lost tasks again, in every domain of a store.",
		Flags: func(f *flag.FlagSet, c *config) {
			f.StringVar(&c.CompactorURL, "compactor-url", "", "URL of the compactor (required)")
			f.StringVar(&c.DispatcherURL, "dispatcher-url", "", "URL of the dispatcher (required)")
			f.DurationVar(&c.Every, "every", 0, "time between sweeps, for example 1m; 0: only on POST /v1/sweep")
			f.DurationVar(&c.FullEvery, "full-every", defaultFullEvery, "time between full sweeps, which visit all domains, if --every is set; the first full sweep begins after the time --every; 0: only on POST /v1/sweep?full=true")
		},
		Check: func(c config) []error {
			problems := []error{checkURL("compactor-url", c.CompactorURL, true), checkURL("dispatcher-url", c.DispatcherURL, true)}
			if c.Every != 0 && c.Every < time.Second {
				problems = append(problems, fmt.Errorf("--every is %s; must be 1s or more, or 0", c.Every))
			}
			if c.FullEvery < 0 {
				problems = append(problems, fmt.Errorf("--full-every is %s; must be 0 or more", c.FullEvery))
			}
			return problems
		},
	}
)

const (
	defaultConcurrency = 32
	defaultFullEvery   = 24 * time.Hour
	// defaultDispatchRate is the number of tasks per second that Cloud Tasks dispatches from a queue by default.
	defaultDispatchRate = 500
	// queueCalls is the maximum number of concurrent calls to the queue, for all domains together.
	queueCalls = 64
	// maxWeight bounds how long the turns of one tenant delay those of other tenants.
	maxWeight = 1000
)

// check returns the problems of the flags that every service has.
func (c config) check() []error {
	var problems []error
	if c.Store == "" {
		problems = append(problems, errors.New("--store is missing: name the folder of objects, or gs://BUCKET"))
	} else if c.inCloud() && !strings.HasPrefix(c.Store, "gs://") {
		problems = append(problems, fmt.Errorf("--store %q is neither a folder nor gs://BUCKET", c.Store))
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		problems = append(problems, fmt.Errorf("--listen %q is not host:port: %w", c.Listen, err))
	}
	if c.MetricsListen != "" {
		if _, _, err := net.SplitHostPort(c.MetricsListen); err != nil {
			problems = append(problems, fmt.Errorf("--metrics-listen %q is not host:port: %w", c.MetricsListen, err))
		}
	}
	if err := new(slog.LevelVar).UnmarshalText([]byte(c.LogLevel)); err != nil {
		problems = append(problems, fmt.Errorf("--log-level %q is not debug, info, warn or error", c.LogLevel))
	}
	return problems
}

var locations = regexp.MustCompile(`^projects/[a-z0-9.:-]+/locations/[a-z0-9-]+$`)

// checkQueue returns the problems of the queue flags.
func (c config) checkQueue() (problems []error) {
	if c.Queue != LocalQueue {
		if !locations.MatchString(c.Queue) {
			problems = append(problems, fmt.Errorf("--queue %q is neither %s nor projects/PROJECT/locations/LOCATION", c.Queue, LocalQueue))
		}
		if c.URL == "" {
			problems = append(problems, errors.New("--url is missing: write the URL at which Cloud Tasks and workers reach this service"))
		}
		return problems
	}
	for _, f := range []struct{ name, value string }{{"prefix", c.QueuePrefix}, {"account", c.QueueAccount}, {"audience", c.QueueAudience}} {
		if f.value != "" {
			problems = append(problems, fmt.Errorf("--queue-%s is for Cloud Tasks, but --queue is %s", f.name, LocalQueue))
		}
	}
	return problems
}

func checkURL(name, value string, required bool) error {
	if value == "" {
		if required {
			return fmt.Errorf("--%s is missing: write a URL like http://127.0.0.1:8091", name)
		}
		return nil
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("--%s %q is not a URL like http://127.0.0.1:8091", name, value)
	}
	return nil
}

// keys returns the keys that sign callbacks, and the keys that sign envelopes.
func (c config) keys() (reports, envelopes contract.Keyring, err error) {
	if c.Keys == "" {
		reports, err = OpenKeys(filepath.Join(c.Store, KeysFile))
	} else {
		reports, err = ReadKeys(c.Keys)
	}
	if err != nil || c.WorkerKeys == "" {
		return reports, reports, err
	}
	envelopes, err = ReadKeys(c.WorkerKeys)
	return reports, envelopes, err
}

// weights returns how many turns each tenant has in a round of the fair queue.
func (c config) weights() (map[string]int, error) {
	return pairs("tenant-weights", c.Weights, func(tenant, turns string) (int, error) {
		n, err := strconv.Atoi(turns)
		if (ids.Domain{Tenant: tenant, Workspace: "any"}).Validate() != nil || err != nil || n < 1 || n > maxWeight {
			return 0, fmt.Errorf("want TENANT=N, with N from 1 to %d", maxWeight)
		}
		return n, nil
	})
}

// workers returns the URLs of the workers that serve one queue each, by queue.
func (c config) workers() (map[string]string, error) {
	return pairs("worker-urls", c.WorkerURLs, func(queue, base string) (string, error) {
		if queue == "" || checkURL("worker-urls", base, true) != nil {
			return "", errors.New("want QUEUE=URL, like gpu=https://gpu.example")
		}
		return strings.TrimSuffix(base, "/"), nil
	})
}

// allowed returns the secrets that channels of alerts may use.
func (c config) allowed() (notify.Allowed, error) {
	if c.ChannelSecrets == "" {
		return nil, nil
	}
	var texts []string
	for text := range strings.SplitSeq(c.ChannelSecrets, ",") {
		texts = append(texts, strings.TrimSpace(text))
	}
	return notify.ParseAllowed(texts)
}

// pairs parses NAME=VALUE pairs, separated by commas.
func pairs[T any](flagName, text string, read func(name, value string) (T, error)) (map[string]T, error) {
	values := map[string]T{}
	if text == "" {
		return values, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		v, err := read(name, value)
		if err != nil {
			return nil, fmt.Errorf("--%s: %q: %w", flagName, part, err)
		}
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("--%s: %s occurs twice", flagName, name)
		}
		values[name] = v
	}
	return values, nil
}

// concurrency returns how many tasks of a queue are delivered at once.
func (c config) concurrency(queue string) int {
	const timers = 16
	if queue == control.TimerQueue {
		return timers
	}
	return c.Concurrency
}
