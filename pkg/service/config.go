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

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// config is the configuration of a service. Which fields a service has is in its
// flags; the others are empty.
type config struct {
	// Listen is the address to serve on; port 0 is a free one.
	Listen string
	// MetricsListen is the address that metrics are served on; "": nowhere.
	MetricsListen string
	// Store is the bucket or the folder of objects.
	Store string
	// LogLevel is debug, info, warn or error.
	LogLevel string

	// CompactorURL, DispatcherURL and WorkerURL are where the others serve.
	CompactorURL  string
	DispatcherURL string
	WorkerURL     string
	// WorkerURLs are where the workers of queues serve that have their own: QUEUE=URL,
	// separated by commas.
	WorkerURLs string
	// URL is where workers and the queue reach this service; "": at Listen.
	URL string
	// Keys is the file of signing keys; "": keys.json in the store's folder, which
	// is made if it is absent. WorkerKeys is that of the keys that workers have; "": Keys.
	Keys, WorkerKeys string
	// Queue is LocalQueue or projects/PROJECT/locations/LOCATION. The names of queues
	// there begin with QueuePrefix; deliveries are made as QueueAccount, for
	// QueueAudience.
	Queue, QueuePrefix, QueueAccount, QueueAudience string
	// Concurrency is how many tasks are pushed to workers at once.
	Concurrency int
	// DispatchRate is how many tasks a second are queued; 0: no bound. Where they wait
	// for that, Weights says how many turns a round tenants have: TENANT=N, separated by
	// commas.
	DispatchRate int
	Weights      string
	// Subscription is one whose messages are pulled; "": they are pushed.
	Subscription string
	// CacheBytes bounds the memory of the domains that are kept open.
	CacheBytes int64
	// KeepRuns is how long runs that have ended are kept after they were triggered.
	KeepRuns time.Duration
	// Every is the time between sweeps, and FullEvery that between full ones; 0: only
	// when asked.
	Every, FullEvery time.Duration

	// Callers are who may call, as ROLE=ACCOUNT, separated by commas, or AnyCaller; their
	// tokens are of Issuer, whose keys are at IssuerKeys, for Audience.
	Callers, Audience, Issuer, IssuerKeys string
	// Identity is as whom this service calls others: GoogleIdentity or NoIdentity.
	Identity string

	Traces Traces
}

// kind is one of the services.
type kind struct {
	// Name is the program's.
	Name string
	// Usage says in a sentence what it does.
	Usage string
	// Flags defines the flags that it has beside those of every service.
	Flags func(*flag.FlagSet, *config)
	// Check reports what is wrong with its part of a configuration.
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
		Name: "servo-compactor", Listen: "127.0.0.1:8091",
		Usage: "Folds ledger entries into the projections of every domain of a store, and publishes them.",
		Flags: func(f *flag.FlagSet, c *config) {
			f.StringVar(&c.DispatcherURL, "dispatcher-url", "", "where the dispatcher serves, to tell it of each revision; empty: nobody is told")
			f.StringVar(&c.Subscription, "subscription", "", "pull the notifications of ledger entries from projects/PROJECT/subscriptions/SUBSCRIPTION; empty: they are pushed")
			f.Int64Var(&c.CacheBytes, "cache-bytes", defaultCacheBytes, "memory for the states of domains, in bytes; above it, domains are closed that no request uses")
			f.DurationVar(&c.KeepRuns, "keep-runs", compactor.KeepRuns, "how long runs that have ended are kept after they were triggered, 720h or more")
		},
		Check: func(c config) []error {
			problems := []error{checkURL("dispatcher-url", c.DispatcherURL, false), c.checkSubscription(), c.checkCache()}
			if c.KeepRuns < compactor.MinKeepRuns {
				problems = append(problems, fmt.Errorf("--keep-runs is %s; must be %s or more", c.KeepRuns, compactor.MinKeepRuns))
			}
			return problems
		},
	}
	dispatcherKind = kind{
		Name: "servo-dispatcher", Listen: "127.0.0.1:8092",
		Usage: "Pushes tasks to workers through a queue, and takes their reports.",
		Flags: func(f *flag.FlagSet, c *config) {
			f.StringVar(&c.CompactorURL, "compactor-url", "", "where the compactor serves (required)")
			f.StringVar(&c.WorkerURL, "worker-url", "", "where the worker serves (required)")
			f.StringVar(&c.WorkerURLs, "worker-urls", "", "where the workers of queues serve that have their own, as gpu=https://gpu.example,large=https://large.example; others are at --worker-url")
			f.StringVar(&c.URL, "url", "", "where workers reach this service (default: the address that it listens on)")
			f.StringVar(&c.Keys, "keys", "", "the file of signing keys (default: "+KeysFile+" in the store's folder, made if it is absent)")
			f.StringVar(&c.WorkerKeys, "worker-keys", "", "the file of the keys that seal what workers are sent, and that workers have; with one of its own, who can read a worker's keys cannot sign its reports (default: that of --keys)")
			f.IntVar(&c.Concurrency, "concurrency", defaultConcurrency, "how many tasks the queue of this process pushes at once")
			f.IntVar(&c.DispatchRate, "dispatch-rate", defaultDispatchRate, "how many tasks a second this process queues, for tenants in turn; 0: no bound, and in a queue the first come first")
			f.StringVar(&c.Weights, "tenant-weights", "", "how many turns a round tenants have, as acme=3,globex=2; others have 1")
			f.StringVar(&c.Queue, "queue", LocalQueue, LocalQueue+": in this process; projects/PROJECT/locations/LOCATION: Cloud Tasks there")
			f.StringVar(&c.QueuePrefix, "queue-prefix", "", "what the names of queues in Cloud Tasks begin with")
			f.StringVar(&c.QueueAccount, "queue-account", "", "the service account as which Cloud Tasks calls workers and this service (default: no token)")
			f.StringVar(&c.Subscription, "subscription", "", "pull the notifications of manifests from projects/PROJECT/subscriptions/SUBSCRIPTION; empty: they are pushed")
			f.Int64Var(&c.CacheBytes, "cache-bytes", defaultCacheBytes, "memory for the states of domains, in bytes; above it, domains are closed that no request uses")
			f.StringVar(&c.QueueAudience, "queue-audience", "", "the audience of its tokens (default: the URL that is called)")
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
				problems = append(problems, errors.New("--keys is missing: a bucket is no place for signing keys; name a file, for example one that is mounted from a secret"))
			}
			if c.verifies() && c.Queue == LocalQueue && (c.Identity != GoogleIdentity || c.Audience != c.URL) {
				problems = append(problems, fmt.Errorf("--callers with --queue %s: this service's own queue calls it, too; say --identity %s and --url, and give its own account the role queue",
					LocalQueue, GoogleIdentity))
			}
			return append(problems, c.checkQueue()...)
		},
	}
	sweeperKind = kind{
		Name: "servo-sweeper", Listen: "127.0.0.1:8093",
		Usage: "Finds what was announced to nobody, and what was dispatched and never came back, in the domains of a store.",
		Flags: func(f *flag.FlagSet, c *config) {
			f.StringVar(&c.CompactorURL, "compactor-url", "", "where the compactor serves (required)")
			f.StringVar(&c.DispatcherURL, "dispatcher-url", "", "where the dispatcher serves (required)")
			f.DurationVar(&c.Every, "every", 0, "sweep this often, for example 1m; 0: only when asked by POST /v1/sweep")
			f.DurationVar(&c.FullEvery, "full-every", defaultFullEvery, "with --every, sweep all domains this often, not only those that are due, and first when it begins; 0: only when asked by POST /v1/sweep?full=true")
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
	// defaultDispatchRate is what Cloud Tasks takes out of a queue in a second.
	defaultDispatchRate = 500
	// queueCalls bounds the calls to the queue that are under way, of all domains together.
	queueCalls = 64
	// maxWeight bounds how long one tenant's turns of a round may hold up the others.
	maxWeight = 1000
)

// check reports what is wrong with what every service has.
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

// checkQueue reports what is wrong with the queue.
func (c config) checkQueue() (problems []error) {
	if c.Queue != LocalQueue {
		if !locations.MatchString(c.Queue) {
			problems = append(problems, fmt.Errorf("--queue %q is neither %s nor projects/PROJECT/locations/LOCATION", c.Queue, LocalQueue))
		}
		if c.URL == "" {
			problems = append(problems, errors.New("--url is missing: Cloud Tasks and workers do not reach the address that this service listens on"))
		}
		return problems
	}
	for _, f := range []struct{ name, value string }{{"prefix", c.QueuePrefix}, {"account", c.QueueAccount}, {"audience", c.QueueAudience}} {
		if f.value != "" {
			problems = append(problems, fmt.Errorf("--queue-%s is of Cloud Tasks, and --queue is %s", f.name, LocalQueue))
		}
	}
	return problems
}

func checkURL(name, value string, required bool) error {
	if value == "" {
		if required {
			return fmt.Errorf("--%s is missing: say where it serves, for example http://127.0.0.1:8091", name)
		}
		return nil
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("--%s %q is not a URL like http://127.0.0.1:8091", name, value)
	}
	return nil
}

// keys are those that sign what workers report, and those that seal what they are sent.
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

// weights are how many turns a round tenants have.
func (c config) weights() (map[string]int, error) {
	return pairs("tenant-weights", c.Weights, func(tenant, turns string) (int, error) {
		n, err := strconv.Atoi(turns)
		if (ids.Domain{Tenant: tenant, Workspace: "any"}).Validate() != nil || err != nil || n < 1 || n > maxWeight {
			return 0, fmt.Errorf("want TENANT=N, of 1 to %d turns a round", maxWeight)
		}
		return n, nil
	})
}

// workers are where the workers of queues serve that have their own.
func (c config) workers() (map[string]string, error) {
	return pairs("worker-urls", c.WorkerURLs, func(queue, base string) (string, error) {
		if queue == "" || checkURL("worker-urls", base, true) != nil {
			return "", errors.New("want QUEUE=URL, as gpu=https://gpu.example")
		}
		return strings.TrimSuffix(base, "/"), nil
	})
}

// pairs are NAME=VALUE, separated by commas.
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
			return nil, fmt.Errorf("--%s: %s is named twice", flagName, name)
		}
		values[name] = v
	}
	return values, nil
}

// concurrency is how many deliveries of a queue are under way at once.
func (c config) concurrency(queue string) int {
	const timers = 16
	if queue == control.TimerQueue {
		return timers
	}
	return c.Concurrency
}
