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
	a.mask = secret.NewMask(values)
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

// inherited is what the command has of the worker's environment: not what is the worker's
// alone, nor what its secrets are taken from, which it finds under the names that it gave.
func (a *attempt) inherited(t *work) []string {
	sources := map[string]bool{}
	for _, reference := range t.Secrets {
		if ref, err := plan.ParseSecret(reference); err == nil && ref.Provider == plan.SecretEnv {
			sources[ref.Name] = true
		}
	}
	var env []string
	for _, entry := range a.w.cfg.Environ {
		if name, _, _ := strings.Cut(entry, "="); !plan.WorkersOwn(name) && !sources[name] {
			env = append(env, entry)
		}
	}
	return env
}
