package e2e_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// viewer represents a browser that is logged in to a running servo-cloud ui.
type viewer struct {
	t    *testing.T
	http http.Client
	url  string
}

// view starts servo-cloud ui on the bucket and logs in.
func (c *cloud) view() *viewer {
	c.t.Helper()
	cmd := program(c.t, "servo-cloud", "-C", "../../examples/weather", "ui", "--listen", "127.0.0.1:0")
	cmd.Env = append(append(os.Environ(), c.environ...), "SERVO_STATE=gs://servo")
	messages, err := cmd.StderrPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, cmd.Start())
	c.t.Cleanup(func() {
		require.NoError(c.t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(c.t, cmd.Wait(), "a signal ends the command without an error")
	})
	lines := bufio.NewScanner(messages)
	for lines.Scan() {
		c.t.Log(lines.Text())
		_, address, found := strings.Cut(lines.Text(), "for one browser: ")
		if !found {
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, messages) }() // otherwise the process would block when its output is not read
		v := &viewer{t: c.t, url: address[:strings.LastIndex(address, "/")]}
		v.http.Jar, err = cookiejar.New(nil)
		require.NoError(c.t, err)
		status, page := v.send(http.MethodGet, address[len(v.url):], "")
		require.Equal(c.t, http.StatusOK, status)
		require.Contains(c.t, page, "<html")
		return v
	}
	require.Fail(c.t, "servo-cloud ui printed no address", "%v", lines.Err())
	return nil
}

// send makes a request and returns the status and the body of the answer.
func (v *viewer) send(method, path, body string) (status int, answer string) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.url+path, strings.NewReader(body))
	require.NoError(v.t, err)
	r.Header.Set("Content-Type", "application/json")
	res, err := v.http.Do(r)
	require.NoError(v.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(v.t, err)
	return res.StatusCode, string(data)
}

// get sends a request and decodes the JSON in the response.
func (v *viewer) get(path string, into any) {
	v.t.Helper()
	status, answer := v.send(http.MethodGet, path, "")
	require.Equal(v.t, http.StatusOK, status, answer)
	require.NoError(v.t, json.Unmarshal([]byte(answer), into))
}

// The page of a bucket shows runs, assets, logs and rows, and changes nothing: every call that would change something
// is rejected, and no object of the bucket is created, replaced or deleted.
func TestCloudViewerOnlyReads(t *testing.T) {
	inExample(t)
	c := startCloud(t, 0, 0, "0")
	c.servo("deploy")
	require.Contains(t, c.servo("run", "--all", "-p", "date=2012-01-01..2012-01-02"), "SUCCEEDED")
	for _, name := range services { // stop all services, because the page needs none
		c.kill(name)
	}
	before := c.objects()
	v := c.view()

	var me struct {
		Mode        string
		Project     string
		Permissions []string
	}
	v.get("/v1/whoami", &me)
	require.Equal(t, "read_only", me.Mode)
	require.NotContains(t, me.Permissions, "RUNS_TRIGGER")
	var list struct {
		Runs []struct {
			RunID string `json:"run_id"`
			State string
		}
	}
	v.get("/v1/runs", &list)
	require.NotEmpty(t, list.Runs)
	require.Equal(t, "SUCCEEDED", list.Runs[0].State)
	var assets struct {
		Assets []struct {
			AssetKey string `json:"asset_key"`
		}
	}
	v.get("/v1/assets", &assets)
	require.NotEmpty(t, assets.Assets)
	status, answer := v.send(http.MethodPost, "/v1/query", `{"sql": "SELECT count(*) AS n FROM tasks"}`)
	require.Equal(t, http.StatusOK, status, answer)

	for _, call := range []struct{ path, body string }{
		{"/v1/runs", `{"all": true}`},
		{"/v1/runs/" + list.Runs[0].RunID + ":cancel", "{}"},
		{"/v1/runs/" + list.Runs[0].RunID + ":retry", "{}"},
		{"/v1/schedules/" + url.PathEscape("daily") + ":pause", "{}"},
	} {
		status, answer := v.send(http.MethodPost, call.path, call.body)
		require.Equal(t, http.StatusForbidden, status, "%s: %s", call.path, answer)
		require.Contains(t, answer, "permission")
	}
	require.Equal(t, before, c.objects())

	anonymous := &viewer{t: t, url: v.url}
	status, _ = anonymous.send(http.MethodGet, "/v1/runs", "")
	require.Equal(t, http.StatusUnauthorized, status)
}

// objects returns the versions of all objects of the bucket by their names.
func (c *cloud) objects() map[string]int64 {
	c.t.Helper()
	found := map[string]int64{}
	for o, err := range c.parts.Store.List(c.t.Context(), blob.ListOptions{}) {
		require.NoError(c.t, err)
		found[o.Key] = o.Version
	}
	return found
}
