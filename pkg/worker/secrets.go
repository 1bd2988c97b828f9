package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/secret"
)

// findSecrets gives the variables of the command whose values the plan does not have. From
// here on they are hidden in all that is kept of the attempt.
func (a *attempt) findSecrets(ctx context.Context, t *work) ([]string, error) {
	if len(t.Secrets) == 0 {
		return nil, nil
	}
	if a.w.cfg.Secrets == nil {
		return nil, refuse(CodeSecretMissing, "the command has secrets, and this worker was not told how to find any")
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

// findSecret gives the value of a reference; an error that may pass is tried again.
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
		return refuse(CodeSecretMissing, "%s: %w", name, err)
	}
	return &failure{CodeSecretUnavailable, CategoryInfrastructure, true, fmt.Errorf("%s: %w", name, err)}
}

// learnSecrets notes the variables that a plan's project takes secrets from: no command of
// this worker inherits them from now on, and their values are hidden in all logs.
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
		w.sources[name] = true
	}
	w.mu.Unlock()
	for _, name := range names {
		if value := lookup(w.cfg.Environ, name); value != "" {
			w.cfg.Redactor.Add(value)
		}
	}
}

// inherited is what the command has of the worker's environment: not what is the worker's
// alone, nor what secrets are taken from. A command that asks for such a secret finds it
// under the name that it gave.
func (a *attempt) inherited() []string {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	var env []string
	for _, entry := range a.w.cfg.Environ {
		if name, _, _ := strings.Cut(entry, "="); !plan.WorkersOwn(name) && !a.w.sources[name] {
			env = append(env, entry)
		}
	}
	return env
}
