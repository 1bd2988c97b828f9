package service

import (
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/metrics"
	"github.com/servo-orchestration/servo/pkg/metrics/prom"
)

var rewrite = flag.Bool("rewrite", false, "write the table of docs/reference/metrics.md")

const (
	metricsPage = "../../docs/reference/metrics.md"
	pageStart   = "-rewrite -->\n"
)

func TestMetricsPageMatchesRegistry(t *testing.T) {
	text, err := os.ReadFile(metricsPage)
	require.NoError(t, err)
	head, _, ok := strings.Cut(string(text), pageStart)
	require.True(t, ok)
	want := head + pageStart + metricsTables(t)
	if *rewrite {
		require.NoError(t, os.WriteFile(metricsPage, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(text), "run: go test ./pkg/service -run TestMetricsPage -rewrite")
}

// inRegistry is the type and the help text of a metric in a registry.
type inRegistry struct{ kind, help string }

// registered returns the metrics of a service's registry, by name.
func registered(t *testing.T, service string) map[string]inRegistry {
	t.Helper()
	r := prom.NewRecorder(catalogOf(service))
	begin(r, service)
	families, err := r.Registry().Gather()
	require.NoError(t, err)
	found := map[string]inRegistry{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "servo_") {
			found[f.GetName()] = inRegistry{strings.ToLower(f.GetType().String()), f.GetHelp()}
		}
	}
	return found
}

// metricsTables returns the tables of the page, from the registries of the services.
func metricsTables(t *testing.T) string {
	t.Helper()
	byService := map[string]map[string]inRegistry{}
	for _, service := range []string{compactorName, dispatcherName, sweeperName} {
		byService[service] = registered(t, service)
		require.Len(t, byService[service], len(catalogOf(service)), "each metric of the catalog has series from the start")
	}
	var page strings.Builder
	section := ""
	for _, m := range catalog {
		title := cmp.Or(strings.Join(m.Services, " and "), "All services")
		if title != section {
			section = title
			fmt.Fprintf(&page, "\n## %s\n\n| name | type | labels | unit | meaning | when to act |\n| --- | --- | --- | --- | --- | --- |\n", title)
		}
		for service, found := range byService {
			_, has := found[m.Name]
			require.Equal(t, m.Of(service), has, "%s of %s", m.Name, service)
			if has {
				require.Equal(t, inRegistry{string(m.Type), m.Help}, found[m.Name])
			}
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s | %s |\n", m.Name, m.Type, labelsText(m), unitOf(m.Name), m.Help, m.Act)
	}
	return page.String()
}

func unitOf(name string) string {
	for _, unit := range []string{"seconds", "bytes"} {
		if strings.HasSuffix(name, "_"+unit) {
			return unit
		}
	}
	return "count"
}

func labelsText(m *metrics.Metric) string {
	var texts []string
	for _, l := range m.Labels {
		text := "`" + l.Name + "`"
		if l.Name != routeLabel.Name { // docs/reference/http.md lists the routes
			text += ": " + strings.Join(l.Values, ", ")
		}
		texts = append(texts, text)
	}
	return cmp.Or(strings.Join(texts, "; "), "–")
}

func TestMetricsFollowConventions(t *testing.T) {
	r := prom.NewRecorder(catalog)
	for _, service := range []string{compactorName, dispatcherName, sweeperName} {
		begin(r, service)
	}
	families, err := r.Registry().Gather()
	require.NoError(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	problems = slices.DeleteFunc(problems, func(p promlint.Problem) bool { return !strings.HasPrefix(p.Metric, "servo_") })
	require.Empty(t, problems)
	for _, m := range catalog {
		require.Equal(t, m.Type == metrics.Histogram, m.Buckets != nil, m.Name)
		require.NotEmpty(t, m.Act, m.Name)
		for _, l := range m.Labels {
			require.NotEmpty(t, l.Values, "%s: the label %s has no closed set of values", m.Name, l.Name)
			require.NotContains(t, []string{"tenant", "workspace", "domain", "run", "run_id", "task", "asset"}, l.Name)
			require.Subset(t, l.Values, l.Begin, m.Name)
		}
	}
}

// Words with our prefix that are not names of metrics.
var notMetrics = []string{
	"servo_root", "servo_context", // variables of queries
	"servo_error", // a file that commands write
}

// If a metric is renamed but the documents and alerts keep its old name, the alerts never fire and nobody can follow
// the instructions.
func TestNamedMetricsExist(t *testing.T) {
	names := map[string]bool{}
	for _, m := range catalog {
		names[m.Name] = true
		if m.Type == metrics.Histogram {
			names[m.Name+"_bucket"], names[m.Name+"_sum"], names[m.Name+"_count"] = true, true, true
		}
	}
	named := regexp.MustCompile(`\bservo_[a-z0-9_]*[a-z0-9]`)
	checked := 0
	check := func(path string) {
		text, err := os.ReadFile(path) //nolint:gosec // the repository's own files
		require.NoError(t, err)
		for _, name := range named.FindAllString(string(text), -1) {
			if !slices.Contains(notMetrics, name) {
				checked++
				require.True(t, names[name], "%s names the metric %s, which no service serves", path, name)
			}
		}
	}
	for _, root := range []string{"../../docs", "../../deploy"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && !strings.HasSuffix(path, "_test.go") {
				check(path)
			}
			return err
		}))
	}
	check("../../README.md")
	check("../../CHANGELOG.md")
	require.Greater(t, checked, 40)
}
