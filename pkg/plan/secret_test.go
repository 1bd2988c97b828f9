package plan_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
)

func TestParseSecret(t *testing.T) {
	for reference, want := range map[string]plan.Secret{
		"file:api-token":                          {Provider: "file", Name: "api-token"},
		"file:tls.key":                            {Provider: "file", Name: "tls.key"},
		"env:WAREHOUSE_PASSWORD":                  {Provider: "env", Name: "WAREHOUSE_PASSWORD"},
		"gcp:projects/p-1/secrets/key":            {Provider: "gcp", Name: "projects/p-1/secrets/key/versions/latest"},
		"gcp:projects/12/secrets/k_1/versions/7":  {Provider: "gcp", Name: "projects/12/secrets/k_1/versions/7"},
		"gcp:projects/a.com:p/secrets/K":          {Provider: "gcp", Name: "projects/a.com:p/secrets/K/versions/latest"},
		"gcp:projects/p/secrets/k/versions/prod":  {Provider: "gcp", Name: "projects/p/secrets/k/versions/prod"},
		"file:" + strings.Repeat("x", 255):        {Provider: "file", Name: strings.Repeat("x", 255)},
		"gcp:projects/p/secrets/versions":         {Provider: "gcp", Name: "projects/p/secrets/versions/versions/latest"},
		"env:GOOGLE_APPLICATION_CREDENTIALS_JSON": {Provider: "env", Name: "GOOGLE_APPLICATION_CREDENTIALS_JSON"},
	} {
		got, err := plan.ParseSecret(reference)
		require.NoError(t, err, reference)
		require.Equal(t, want, got, reference)
	}
}

func TestParseSecretNeverQuotesInvalidReferences(t *testing.T) {
	for reference, want := range map[string]string{
		"hunter2-hunter2":                       "must be file:NAME, env:VARIABLE or gcp:",
		"":                                      "must be file:",
		"FILE:x":                                "must be file:",
		"vault:x":                               "must be file:",
		"file:":                                 "file: expects a plain",
		"file:..":                               "file: expects",
		"file:.hidden":                          "file: expects",
		"file:a/b":                              "without a folder",
		`file:a\b`:                              "without a folder",
		"file:/etc/passwd":                      "without a folder",
		"file:x\n":                              "file: expects",
		"file:" + strings.Repeat("x", 256):      "file: expects",
		"env:":                                  "env: expects",
		"env:A-B":                               "env: expects",
		"env:SERVO_KEYS":                        "the variable SERVO_KEYS is reserved",
		"env:OTEL_EXPORTER_OTLP_HEADERS":        "is reserved for the worker",
		"env:OTEL_EXPORTER_OTLP_TRACES_HEADERS": "is reserved for the worker",
		"gcp:key":                               "gcp: expects projects/PROJECT/secrets/SECRET",
		"gcp:projects/p/secrets/k/versions/":    "gcp: expects",
		"gcp:projects/p/secrets/../versions/1":  "gcp: expects",
		"gcp:projects/p/secrets/k/versions/1:x": "gcp: expects",
		"gcp:projects/p/locations/eu/secrets/k": "gcp: expects",
		"gcp:projects/p/secrets/k?alt=media":    "gcp: expects",
		"gcp:projects/p/secrets/k/versions/1/more": "gcp: expects",
	} {
		_, err := plan.ParseSecret(reference)
		require.ErrorContains(t, err, want, reference)
		require.NotContains(t, err.Error(), "hunter2", "an invalid reference may be a secret itself")
	}
}

func TestDecodeRejectsInvalidSecrets(t *testing.T) {
	many := map[string]string{}
	for i := range plan.MaxSecrets + 1 {
		many["S"+strings.Repeat("x", i)] = "file:x"
	}
	for name, c := range map[string]struct {
		work plan.Work
		want string
	}{
		"a value":     {plan.Work{Command: []string{"x"}, Secrets: map[string]string{"T": "hunter2"}}, "asset raw/weather: secret T: must be file:"},
		"a query":     {plan.Work{SQL: "x", Secrets: map[string]string{"T": "file:t"}}, "asset raw/weather has secrets; only commands may"},
		"a variable":  {plan.Work{Command: []string{"x"}, Secrets: map[string]string{"A B": "file:t"}}, `secret "A B" cannot be an environment variable`},
		"Servo's own": {plan.Work{Command: []string{"x"}, Secrets: map[string]string{"SERVO_BIN": "file:t"}}, `secret "SERVO_BIN" cannot be an environment variable`},
		"twice":       {plan.Work{Command: []string{"x"}, Secrets: map[string]string{"T": "file:t"}, Env: map[string]string{"T": "t"}}, "T is in both env and secrets"},
		"too many":    {plan.Work{Command: []string{"x"}, Secrets: many}, "has 101 secrets; at most 100 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			p := build(t, plan.Request{Root: "/p", Assets: weather(), All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
			p.Assets["raw/weather"] = c.work
			data, err := json.Marshal(p)
			require.NoError(t, err)
			_, err = plan.Decode(data)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

// A plan that Servo stored before it supported secrets must keep its hash. Otherwise a repeated run key would not find
// its run.
func TestPlanWithoutSecretsKeepsItsHash(t *testing.T) {
	p := &plan.Plan{SchemaVersion: 1, Root: "/p", Assets: map[string]plan.Work{
		"a/b": {Command: []string{"sh"}, Env: map[string]string{"A": "b"}},
	}, Tasks: []plan.Task{{}}}
	p.Tasks[0].TaskKey, p.Tasks[0].AssetKey = "a/b", "a/b"
	data, sha, err := p.Encode()
	require.NoError(t, err)
	require.Equal(t, `{"assets":{"a/b":{"command":["sh"],"env":{"A":"b"}}},"root":"/p","schema_version":1,`+
		`"tasks":[{"asset_key":"a/b","task_key":"a/b"}]}`, string(data))
	require.Equal(t, olderSHA, sha)
	fingerprint, err := p.Fingerprint()
	require.NoError(t, err)
	require.Equal(t, olderFingerprint, fingerprint)
	again, err := plan.Decode(data)
	require.NoError(t, err)
	require.Nil(t, again.Assets["a/b"].Secrets)

	w := again.Assets["a/b"]
	w.Secrets = map[string]string{"T": "file:t"}
	again.Assets["a/b"] = w
	data, _, err = again.Encode()
	require.NoError(t, err)
	require.Contains(t, string(data), `"secrets":{"T":"file:t"}`)
}

// These are the hashes that Servo computed before it supported secrets.
const (
	olderSHA         = "75042bd075125f17b1ca23bf2fbfb8140bb124c0f23e14628555364e7f8df770"
	olderFingerprint = "4107ff46c9cb403338623f8725f757a69746df19db5154562afee79ef16ad062"
)

// Every plan lists which variables of the worker contain secrets, even if the assets that use the secrets are not in
// the plan.
func TestPlansListSecretVariables(t *testing.T) {
	assets := weather()
	assets[0].Work = plan.Work{Command: []string{"sh"}, Secrets: map[string]string{"A": "env:TOKEN", "B": "file:x", "C": "env:PASSWORD"}}
	p := build(t, plan.Request{Root: "/p", Assets: assets, Select: keys("analytics/monthly"), Materialized: made("clean/daily 2012-01-01")})
	require.Equal(t, []string{"PASSWORD", "TOKEN"}, p.SecretVariables)
	require.NotContains(t, p.Assets, assets[0].Key.String())
	repeated, err := plan.Retry(p, []string{p.Tasks[0].TaskKey}, nil)
	require.NoError(t, err)
	require.Equal(t, p.SecretVariables, repeated.SecretVariables)
	_, err = plan.ParseSecret("env:PATH")
	require.ErrorContains(t, err, "PATH cannot be a secret")
}
