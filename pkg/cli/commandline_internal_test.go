package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSuggestedCommandsGetFlagsOfInvocation(t *testing.T) {
	const text = "run it: servo run a/b --failed-only, or `servo backfill wait X`.\nservo logs R 'a/b[date=1]'\n" +
		"servo: run R failed; servo processes and `servo init DIR` and servo-cloud run; `servo deploy --env prod`"
	for _, c := range []struct {
		name                    string
		dir, environment, state string
		environ                 []string
		want                    string
	}{
		{name: "no flags", want: text},
		{
			name: "variables", environment: "prod", state: "s", environ: []string{"SERVO_ENV=prod", "SERVO_STATE=s"}, want: text,
		},
		{
			name: "environment", environment: "prod",
			want: "run it: servo --env prod run a/b --failed-only, or `servo --env prod backfill wait X`.\nservo --env prod logs R 'a/b[date=1]'\n" +
				"servo: run R failed; servo processes and `servo init DIR` and servo-cloud run; `servo deploy --env prod`",
		},
		{
			name: "all flags", dir: "my project", environment: "prod", state: "s", environ: []string{"SERVO_ENV=dev"},
			want: "run it: servo -C 'my project' --env prod --state s run a/b --failed-only, or `servo -C 'my project' --env prod --state s backfill wait X`.\n" +
				"servo -C 'my project' --env prod --state s logs R 'a/b[date=1]'\n" +
				"servo: run R failed; servo processes and `servo init DIR` and servo-cloud run; `servo -C 'my project' --state s deploy --env prod`",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &app{Env: Env{Name: "servo", Environ: c.environ}}
			a.root()
			a.dir, a.environment, a.state = c.dir, c.environment, c.state
			require.Equal(t, c.want, a.completed(text))
		})
	}
}
