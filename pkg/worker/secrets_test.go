package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/worker"
)

const canary = "hunter2-canary"

// vault returns the canary as the value of every reference, except for the references listed below.
type vault struct{ asked atomic.Int64 }

func (v *vault) resolve(_ context.Context, reference string) (string, error) {
	v.asked.Add(1)
	switch reference {
	case "file:lines":
		return "-----BEGIN-----\n" + canary + "\nof the second line\n", nil
	case "file:missing":
		return "", fmt.Errorf("secret %s: %w", reference, secret.ErrRefused)
	case "file:away":
		return "", errors.New("secret file:away: no response")
	case "file:busy":
		if v.asked.Load() < 3 {
			return "", errors.New("secret file:busy: too many at once")
		}
	}
	return canary, nil
}

// withSecrets returns a fixture whose worker resolves secrets.
func withSecrets(t *testing.T, assets map[string]plan.Work, tasks ...plan.Task) (*fixture, *vault) {
	t.Helper()
	v := &vault{}
	w := newFixture(t, nil, assets, tasks...)
	w.config.Secrets = v.resolve
	w.config.Environ = append(w.config.Environ, "WAREHOUSE_PASSWORD="+canary, "SERVO_STATE=gs://of-the-worker", "SERVO_BINARY=x",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=x", "OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization=x", "OTEL_SERVICE_NAME=kept")
	w.worker, w.server = w.open(w.config)
	return w, v
}

func shellWithSecrets(script string, secrets map[string]string) plan.Work {
	work := shell(script)
	work.Secrets = secrets
	return work
}

func TestCommandGetsSecretsAndLogMasksThem(t *testing.T) {
	w, v := withSecrets(t, map[string]plan.Work{"a/b": shellWithSecrets(
		`printf %s "$TOKEN" | wc -c > $SERVO_OUTPUT/length; echo "it is $TOKEN"; echo "err $TOKEN" >&2; echo "$KEY"; echo done`,
		map[string]string{"TOKEN": "file:token", "KEY": "file:lines"})}, task("a/b", "", nil))
	require.NotContains(t, w.read(w.ref), canary)
	require.Contains(t, w.read(w.ref), `"secrets":{"KEY":"file:lines","TOKEN":"file:token"}`)
	end := w.run("a/b")
	require.Equal(t, fmt.Sprintln(len(canary)), strings.TrimLeft(w.read(end.Output.URI+"length"), " "))
	log := w.log("a/b")
	for _, part := range []string{canary, "hunter", "canary", "BEGIN", "second"} {
		require.NotContains(t, log, part)
	}
	require.Contains(t, log, "it is ***\n")
	require.Contains(t, log, "err ***\n")
	require.Contains(t, log, "done\n")
	require.EqualValues(t, 2, v.asked.Load())

	require.Equal(t, end.Output, w.run("a/b").Output, "the redelivery finds the marker")
	require.EqualValues(t, 2, v.asked.Load(), "and resolves no secret")
}

// If the middle of a log is omitted, a secret may be cut in two. This test fails if secrets are masked only after the
// omission, because a part of such a secret would then stay in the log.
func TestSplitSecretsAreMasked(t *testing.T) {
	w, _ := withSecrets(t, map[string]plan.Work{
		"a/many":   shellWithSecrets(`yes "$TOKEN," | tr -d '\n' | head -c 1500000 >&2; exit 1`, map[string]string{"TOKEN": "file:token"}),
		"a/large":  shellWithSecrets(`yes "...$TOKEN..." | head -c 30000000`, map[string]string{"TOKEN": "file:token"}),
		"a/pieces": shellWithSecrets(`printf hun; printf ter2 >&2; printf ter2; printf -- '-can' >&2; printf -- '-can'; printf ary; echo; exit 1`, map[string]string{"TOKEN": "file:token"}),
		"a/last":   shellWithSecrets(`printf 'hunter2-canary' >&2; printf 'and hunter2-cana' >&2; exit 1`, map[string]string{"TOKEN": "file:token"}),
	}, task("a/many", "", nil), task("a/large", "", nil), task("a/pieces", "", nil), task("a/last", "", nil))
	got := w.failed("a/many")
	require.Equal(t, worker.CodeExitStatus, got.Code)
	require.NotContains(t, got.Message, "canary")
	require.Contains(t, got.Message, "***,***,***")
	require.NotContains(t, w.log("a/many"), "hunter")
	w.run("a/large")
	log := w.log("a/large")
	require.Contains(t, log, "omitted")
	require.Contains(t, log, "...***...\n...***...\n")
	require.NotContains(t, log, "canary")
	require.Equal(t, 1, strings.Count(log, "hunter"), "a last line that ends within a secret")
	got = w.failed("a/pieces")
	require.NotContains(t, got.Message+w.log("a/pieces"), canary)
	got = w.failed("a/last")
	require.Equal(t, "sh exited with status 1:\n***and hunter2-cana", got.Message, "an incomplete secret is not masked")
}

func TestErrorMessagesMaskSecrets(t *testing.T) {
	secrets := map[string]string{"TOKEN": "file:token"}
	named := plan.Work{Command: []string{"./" + canary}, Secrets: secrets} // the name of this program is the same as a secret
	w, _ := withSecrets(t, map[string]plan.Work{
		"a/link": shellWithSecrets(`ln -s /etc/passwd $SERVO_OUTPUT/$TOKEN`, secrets), "a/none": named,
		"a/parquet": shellWithSecrets(`echo no > $SERVO_OUTPUT/$TOKEN.parquet`, secrets),
	}, task("a/link", "", nil), task("a/none", "", nil), task("a/parquet", "", nil))
	for key, want := range map[string]string{"a/link": `output "***" is not a regular file`, "a/none": "***", "a/parquet": "***.parquet"} {
		got := w.failed(key)
		require.Contains(t, got.Message, want, key)
		require.NotContains(t, got.Message, "canary", key)
	}
}

func TestSecretFailuresAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		reference string
		want      event.Error
		asked     int64
	}{
		"missing": {"file:missing", event.Error{
			Code: worker.CodeSecretMissing, Category: "configuration", Message: "TOKEN: secret file:missing: no value",
		}, 1},
		"away": {"file:away", event.Error{
			Code: worker.CodeSecretUnavailable, Category: "transient", Message: "TOKEN: secret file:away: no response", Retryable: true,
		}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			w, v := withSecrets(t, map[string]plan.Work{"a/b": shellWithSecrets("echo ran", map[string]string{"TOKEN": c.reference})}, task("a/b", "", nil))
			require.Equal(t, &c.want, w.failed("a/b"))
			require.Equal(t, c.asked, v.asked.Load())
			require.Empty(t, w.keysBelow("logs/"), "it did not run")
		})
	}
	w, _ := withSecrets(t, map[string]plan.Work{"a/b": shellWithSecrets("true", map[string]string{"TOKEN": "file:busy"})}, task("a/b", "", nil))
	w.run("a/b")
	w = newFixture(t, nil, map[string]plan.Work{"a/b": shellWithSecrets("true", map[string]string{"TOKEN": "file:x"})}, task("a/b", "", nil))
	require.Equal(t, worker.CodeSecretMissing, w.failed("a/b").Code, "a worker without secrets")
}

func TestCommandsDoNotInheritWorkersVariables(t *testing.T) {
	w, _ := withSecrets(t, map[string]plan.Work{
		"a/b": shell("env"),
		"a/c": shellWithSecrets(`echo "length ${#PASSWORD}"; env`, map[string]string{"PASSWORD": "env:WAREHOUSE_PASSWORD"}),
		"a/d": shellWithSecrets(`echo "length ${#WAREHOUSE_PASSWORD}"`, map[string]string{"WAREHOUSE_PASSWORD": "env:WAREHOUSE_PASSWORD"}),
	}, task("a/b", "", nil), task("a/c", "", nil), task("a/d", "", nil))
	w.run("a/b")
	log := w.log("a/b")
	for _, name := range []string{"SERVO_STATE", "SERVO_BINARY", "OTEL_EXPORTER"} {
		require.NotContains(t, log, name)
	}
	require.Contains(t, log, "SERVO_BIN=/opt/servo\n")
	require.Contains(t, log, "OTEL_SERVICE_NAME=kept\n")
	require.NotContains(t, log, "WAREHOUSE_PASSWORD", "another asset of the project takes a secret from it")
	w.run("a/c")
	log = w.log("a/c")
	require.Contains(t, log, fmt.Sprintf("length %d\n", len(canary)))
	require.Contains(t, log, "PASSWORD=***\n")
	require.NotContains(t, log, "WAREHOUSE_PASSWORD")
	w.run("a/d")
	require.Equal(t, fmt.Sprintf("length %d\n", len(canary)), w.log("a/d"))
}

// This test fails if a command inherits the variable with the secret of another asset, because the command could
// print the secret.
func TestSecretVariablesAreKeptFromOtherCommands(t *testing.T) {
	printing := shell(`env; echo "somebody told me ` + canary + `"; exit 1`)
	w, _ := withSecrets(t, map[string]plan.Work{"a/b": printing, "a/q": query("SELECT error('" + canary + "')")}, task("a/b", "", nil), task("a/q", "", nil))
	w.failed("a/b")
	require.Contains(t, w.log("a/b"), "WAREHOUSE_PASSWORD="+canary+"\n", "not declared as a secret yet")
	w.plan.SecretVariables = []string{"WAREHOUSE_PASSWORD", "NOT_SET"} // variables of an asset that is not in the run
	w.storePlan()
	got := w.failed("a/b")
	require.NotContains(t, got.Message+w.log("a/b"), canary)
	require.NotContains(t, w.log("a/b"), "WAREHOUSE_PASSWORD")
	require.Contains(t, w.log("a/b"), "somebody told me ***\n")
	got = w.failed("a/q")
	require.NotContains(t, got.Message+w.log("a/q"), canary)
	require.Contains(t, got.Message, "***")
}
