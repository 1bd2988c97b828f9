package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/secret"
)

// findSecrets resolves the command's secrets and returns them as "NAME=value". From then on, the logs and reports of
// the attempt mask the values.
func (a *attempt) findSecrets(ctx context.Context, t *work) ([]string, error) {
	if len(t.Secrets) == 0 {
		return nil, nil
	}
	if a.w.cfg.Secrets == nil {
		return nil, permanent(CodeSecretMissing, "the command needs secrets, but this worker has no source of secrets")
	}
	var variables, values []string
	for _, name := range slices.Sorted(maps.Keys(t.Secrets)) {
		value, err := a.findSecret(ctx, t.Secrets[name])
		if err != nil {
			return nil, secretFailure(name, err)
		}
		variables, values = append(variables, name+"="+value), append(values, value)
	}
	a.mask = a.w.cfg.Redactor.Mask(values...)
	return variables, nil
}

// findSecret returns the value of a reference, and retries transient errors.
func (a *attempt) findSecret(ctx context.Context, reference string) (string, error) {
	wait := firstBackoff
	for try := 1; ; try++ {
		value, err := a.w.cfg.Secrets(ctx, reference)
		if err == nil || errors.Is(err, secret.ErrRefused) || try == getTries {
			return value, err
		}
		if stopped := a.w.cfg.Clock.Sleep(ctx, wait); stopped != nil {
			return "", err
		}
		wait *= 2
	}
}

func secretFailure(name string, err error) error {
	if errors.Is(err, secret.ErrRefused) {
		return permanent(CodeSecretMissing, "%s: %w", name, err)
	}
	return &failure{CodeSecretUnavailable, event.CategoryTransient, true, fmt.Errorf("%s: %w", name, err)}
}

// learnSecrets records the environment variables that a plan's project uses as secrets. From then on, no command of
// this worker inherits these variables, and all logs mask their values.
func (w *Worker) learnSecrets(p *plan.Plan) {
	names := slices.Clone(p.SecretVariables)
	for key := range p.Assets {
		work := p.Assets[key]
		names = append(names, work.SecretVariables()...)
	}
	if len(names) == 0 {
		return
	}
	w.mu.Lock()
	for _, name := range names {
		w.secretVars[name] = true
	}
	w.mu.Unlock()
	for _, name := range names {
		if value := lookup(w.cfg.Environ, name); value != "" {
			w.cfg.Redactor.Add(value)
		}
	}
}

// inherited returns the part of the worker's environment that commands inherit. It omits the worker's own variables
// and the variables that are used as secrets. A command that declares a secret gets it under the declared name.
func (a *attempt) inherited() []string {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	var env []string
	for _, entry := range a.w.cfg.Environ {
		if name, _, _ := strings.Cut(entry, "="); !plan.WorkersOwn(name) && !a.w.secretVars[name] {
			env = append(env, entry)
		}
	}
	return env
}
