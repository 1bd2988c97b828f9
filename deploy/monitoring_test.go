package deploy_test

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"

	"github.com/servo-orchestration/servo/tests/clustertest"
)

var (
	selector  = regexp.MustCompile(`\b(servo_[a-z_]+|logging_googleapis_com:user_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`([a-z_]+)(=~|=)"([^"]*)"`)
	by        = regexp.MustCompile(`by \(([a-z_, ]+)\)`)
	logMetric = "logging_googleapis_com:user_"
)

// served holds what /metrics returned: for each name of a metric, the labels of every line with this name.
type served map[string][]map[string]string

func serve(c *clustertest.Cluster) served {
	all := served{}
	for _, name := range []string{"compactor", "dispatcher", "sweeper"} {
		for _, line := range c.Metrics(name, "servo_") {
			m := selector.FindStringSubmatch(line)
			labels := map[string]string{}
			for _, label := range regexp.MustCompile(`([a-z_]+)="([^"]*)"`).FindAllStringSubmatch(line, -1) {
				labels[label[1]] = label[2]
			}
			all[m[1]] = append(all[m[1]], labels)
		}
	}
	return all
}

// From its start, a service serves every series that the queries of alerts and of the dashboard read, with the labels
// and values in these queries. A counter that appeared only with its first event would have no increase for that event.
func TestQueriedMetricsExistFromTheStart(t *testing.T) {
	c := clustertest.Start(t, clustertest.Options{Worker: http.NotFoundHandler()})
	all := serve(c)
	p := installed(t, sidecars)
	asked := 0
	for name, query := range p.queries() {
		for _, m := range selector.FindAllStringSubmatch(query, -1) {
			if strings.HasPrefix(m[1], logMetric) {
				continue
			}
			asked++
			found := false
			for _, labels := range all[m[1]] {
				found = found || matches(m[2], labels)
			}
			require.True(t, found, "%s: no service serves %s", name, m[0])
			for _, grouped := range by.FindAllStringSubmatch(query, -1) {
				for label := range strings.SplitSeq(grouped[1], ", ") {
					for _, labels := range all[m[1]] {
						require.Contains(t, labels, label, "%s: of %s", name, m[1])
					}
				}
			}
		}
	}
	require.Greater(t, asked, 12)
}

// The counter of a route that no service serves would stay at 0.
func TestRoutesThatStartAtZeroAreServed(t *testing.T) {
	c := clustertest.Start(t, clustertest.Options{Worker: http.NotFoundHandler()})
	asked := 0
	for name, base := range c.URL {
		for _, line := range c.Metrics(name, "servo_http_requests_total") {
			m := regexp.MustCompile(`route="POST ([^"]+)",status="500"} 0$`).FindStringSubmatch(line)
			if m == nil {
				continue
			}
			asked++
			path := regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(m[1], "x")
			answer, err := http.Post(base+path, "application/json", http.NoBody) //nolint:gosec // a server of this test
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			counted := false
			for _, after := range c.Metrics(name, `servo_http_requests_total{route="POST `+m[1]+`"`) {
				counted = counted || !strings.HasSuffix(after, " 0")
			}
			require.True(t, counted, "%s: %s", name, m[1])
		}
	}
	require.Equal(t, 7, asked)
}

// matches reports whether a series matches a selector.
func matches(wanted string, labels map[string]string) bool {
	for _, want := range matcher.FindAllStringSubmatch(wanted, -1) {
		pattern := regexp.QuoteMeta(want[3])
		if want[2] == "=~" {
			pattern = want[3]
		}
		value, ok := labels[want[1]]
		if !ok || !regexp.MustCompile("^(?:"+pattern+")$").MatchString(value) {
			return false
		}
	}
	return true
}

// queries returns the queries of the alerts and the dashboard, by title.
func (p *installation) queries() map[string]string {
	p.t.Helper()
	queries := map[string]string{}
	for _, alert := range p.resolve("local.alerts").AsValueMap() {
		queries[alert.GetAttr("title").AsString()] = alert.GetAttr("query").AsString()
	}
	for title, query := range p.resolve("local.watched").AsValueMap() {
		queries[title] = query.AsString()
	}
	return queries
}

// The sweeper's events are counted in logs: its process has no CPU between requests, so its
// metrics cannot be scraped.
func TestLogMetricsMatchLogLines(t *testing.T) {
	p := installed(t, sidecars)
	counted := p.resolve("local.counted").AsValueMap()
	jobs := map[string]bool{}
	for _, each := range p.instances("google_cloud_scheduler_job.sweeps") {
		name := p.attribute(p.blocks["google_cloud_scheduler_job.sweeps"].Body, each, "name").AsString()
		jobs[name] = true
		require.Contains(t, counted["sweeps"].AsString(), `"`+name+`"`)
	}
	asked := 0
	for title, query := range p.queries() {
		require.NotRegexp(t, `\bservo_(sweeps|late_sweeps|swept_[a-z]+)_total`, query, title)
		for _, m := range selector.FindAllStringSubmatch(query, -1) {
			name, ok := strings.CutPrefix(m[1], logMetric+"servo_")
			if !ok {
				continue
			}
			asked++
			require.Contains(t, counted, name, title)
			for _, want := range matcher.FindAllStringSubmatch(m[2], -1) {
				switch want[1] {
				case "monitored_resource":
					require.Contains(t, counted[name].AsString(), `resource.type="`+want[3]+`"`, title)
				case "job_id":
					require.True(t, jobs[want[3]], "%s: no job has the name %s", title, want[3])
				default:
					require.Failf(t, "an unknown label", "%s: %s", title, want[1])
				}
			}
		}
	}
	require.GreaterOrEqual(t, asked, 5)

	c := clustertest.Start(t, clustertest.Options{Worker: http.NotFoundHandler()})
	r, err := http.NewRequest(http.MethodPost, c.URL["sweeper"]+"/v1/sweep?full=true", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+c.Token("scheduler", "sweeper"))
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode, "the sweep is complete: %s", body)
	line := regexp.MustCompile(`(?m)^.*"msg":"swept".*$`).FindString(c.Logs())
	require.NotEmpty(t, line)
	for name, filter := range counted {
		for _, field := range regexp.MustCompile(`jsonPayload\.([a-z_]+)[>=]+(\d+)`).FindAllStringSubmatch(filter.AsString(), -1) {
			require.Regexp(t, `"`+field[1]+`":\d+`, line, name)
		}
	}
}

// Every subscription that a service depends on has an alert on its oldest unacknowledged message.
func TestUnacknowledgedMessagesAlert(t *testing.T) {
	p := installed(t, nil)
	policy := p.blocks["google_monitoring_alert_policy.unacknowledged"].Body
	filters := ""
	for _, each := range p.instances("google_monitoring_alert_policy.unacknowledged") {
		filters += p.attribute(p.within(policy, "conditions", "condition_threshold"), each, "filter").AsString() + "\n"
	}
	require.Contains(t, filters, "pubsub.googleapis.com/subscription/oldest_unacked_message_age")
	subscription := p.blocks["google_pubsub_subscription.objects"].Body
	for _, each := range p.instances("google_pubsub_subscription.objects") {
		name := p.attribute(subscription, each, "name").AsString()
		require.Contains(t, filters, `resource.labels.subscription_id = "`+name+`"`)
	}
}

// The two alerts that report missing sweeps also fire if no sweep has ever run.
func TestAbsenceAlertsFireWithoutAnySweep(t *testing.T) {
	p := installed(t, nil)
	alerts := p.resolve("local.alerts").AsValueMap()
	require.Contains(t, alerts, "full_sweep_fails", "also without a sidecar")
	require.NotContains(t, alerts, "compaction_fails")
	for _, name := range []string{"sweeps_fail", "full_sweep_fails"} {
		require.Regexp(t, `^absent\(.+ > 0\)$`, alerts[name].GetAttr("query").AsString(), "the sum over no series is absent, not 0")
	}
	for name, alert := range alerts {
		require.Contains(t, p.attribute(p.within(p.blocks["google_monitoring_alert_policy.this"].Body, "conditions", "condition_prometheus_query_language"),
			map[string]cty.Value{"each": cty.ObjectVal(map[string]cty.Value{"value": alert})}, "duration").AsString(), "s", name)
	}
}

var (
	command = regexp.MustCompile("`(gcloud [^`]+)`")
	placed  = map[string]string{"gcloud scheduler": "--location ", "gcloud tasks": "--location ", "gcloud run": "--region "}
)

// A gcloud command that does not name its region and its project prompts for them, and hangs in a script.
func TestCommandsNameRegionAndProject(t *testing.T) {
	p := installed(t, sidecars)
	found := 0
	check := func(text string, project bool) {
		for _, c := range command.FindAllStringSubmatch(text, -1) {
			found++
			if project {
				require.Contains(t, c[1], "--project p", c[1])
			}
			require.NotContains(t, c[1], "${", c[1])
			for prefix, flag := range placed {
				if strings.HasPrefix(c[1], prefix) {
					require.Contains(t, c[1]+" ", flag, c[1])
				}
			}
		}
	}
	for _, alert := range p.resolve("local.alerts").AsValueMap() {
		check(alert.GetAttr("todo").AsString(), true)
	}
	dead := p.within(p.blocks["google_monitoring_alert_policy.dead_letters"].Body, "documentation")
	check(p.attribute(dead, nil, "content").AsString(), true)
	waiting := p.within(p.blocks["google_monitoring_alert_policy.unacknowledged"].Body, "documentation")
	for _, each := range p.instances("google_monitoring_alert_policy.unacknowledged") {
		check(p.attribute(waiting, each, "content").AsString(), true)
	}
	require.Greater(t, found, 10)
	guide, err := os.ReadFile("../docs/deploy.md")
	require.NoError(t, err)
	check(string(guide), false)
	for line := range strings.Lines(string(guide)) {
		if strings.HasPrefix(line, "gcloud ") {
			check("`"+strings.TrimSpace(line)+"`", false)
		}
	}
}
