package embedded_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/api/rest"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// beStranger is an environment variable. It makes the test binary run as a process of another user: the process
// reads requests from its standard input, sends them, and prints the statuses of the responses.
const beStranger = "SERVO_TEST_STRANGER"

// nobody is the id of a user other than the user of the tests.
const nobody = 65534

func TestMain(m *testing.M) {
	if os.Getenv(beStranger) == "" { //nolint:forbidigo // set for the second process
		os.Exit(m.Run())
	}
	if err := json.NewEncoder(os.Stdout).Encode(askAsStranger(os.Stdin)); err != nil {
		panic(err)
	}
}

// noRedirects is a client that does not follow redirects. It shares connections with [http.DefaultClient].
var noRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// call is a request of a test and the status of the response.
type call struct {
	Method, URL, Body, Token string
	Read                     string // if set, the call reads this file
	Cookie                   string // the value of the session's cookie
	Site                     string // the header Sec-Fetch-Site
	Status                   int
	Error                    string
}

func askAsStranger(in io.Reader) []call {
	var calls []call
	if err := json.NewDecoder(in).Decode(&calls); err != nil {
		panic(err)
	}
	for i := range calls {
		calls[i].make()
	}
	return calls
}

// make makes the request.
func (c *call) make() {
	if c.Read != "" {
		if _, err := os.ReadFile(c.Read); err != nil {
			c.Error = err.Error()
		}
		return
	}
	r, err := http.NewRequest(c.Method, c.URL, strings.NewReader(c.Body))
	if err != nil {
		c.Error = err.Error()
		return
	}
	r.Header.Set("Content-Type", "application/json")
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if c.Cookie != "" {
		r.Header.Set("Cookie", c.Cookie)
	}
	if c.Site != "" {
		r.Header.Set("Sec-Fetch-Site", c.Site)
	}
	answer, err := noRedirects.Do(r)
	if err != nil {
		c.Error = err.Error()
		return
	}
	c.Status = answer.StatusCode
	_ = answer.Body.Close()
}

// served starts a stack with every route of servo dev and returns its mux.
func served(t *testing.T, dir string) (owner embedded.Owner, mux *http.ServeMux) {
	t.Helper()
	opts := options(t, dir)
	opts.Routes = func(m *http.ServeMux, e *engine.Engine, _ *worker.Worker) {
		mux = m
		api.Register(m, api.Config{Engine: e, Project: func() (*api.Project, error) { return nil, errors.New("no project") }, User: func(http.Header) string { return "test" }})
	}
	opts.Page = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the page")) })
	s, err := embedded.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	owner, err = embedded.ReadOwner(dir)
	require.NoError(t, err)
	return owner, mux
}

// patterns returns the patterns of a mux. The standard library does not list them, so patterns reads them from the
// mux's index.
func patterns(t *testing.T, mux *http.ServeMux) []string {
	t.Helper()
	var found []string
	var visit func(reflect.Value)
	visit = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			found = append(found, v.Elem().FieldByName("str").String())
		case reflect.Slice:
			for i := range v.Len() {
				visit(v.Index(i))
			}
		case reflect.Map:
			for entries := v.MapRange(); entries.Next(); {
				visit(entries.Value())
			}
		default:
			t.Fatalf("http.ServeMux has changed: its index holds %s", v.Kind())
		}
	}
	index := reflect.ValueOf(mux).Elem().FieldByName("index")
	visit(index.FieldByName("segments"))
	visit(index.FieldByName("multis"))
	for _, known := range []string{
		"/", "GET /healthz", "GET /readyz", "GET /w/", "POST /v1/logins", "/v1/", "/servo.v1.ExecutionService/", "POST /v1/compact", "POST /execute", contract.CallbackPattern,
	} {
		require.Contains(t, found, known)
	}
	return found
}

var wildcard = regexp.MustCompile(`\{[^}]*\}`)

// calls lists one or more requests for every route except the health routes and the routes of the page.
func calls(t *testing.T, owner embedded.Owner, mux *http.ServeMux) []call {
	t.Helper()
	var all []call
	for _, pattern := range patterns(t, mux) {
		if slices.Contains([]string{"GET /healthz", "GET /readyz", "GET /{$}", "GET /w/", "GET /assets/", "GET /login"}, pattern) {
			continue
		}
		method, path, ok := strings.Cut(pattern, " ")
		if !ok {
			method, path = http.MethodPost, pattern
		}
		path = strings.NewReplacer("{tenant}", "acme", "{workspace}", "prod", "{verb}", "finished").Replace(path)
		all = append(all, call{Method: method, URL: owner.URL + wildcard.ReplaceAllString(path, "x"), Body: "{}"})
	}
	for _, r := range rest.Routes() { // one pattern of the mux serves all of these routes
		all = append(all,
			call{Method: r.Method, URL: owner.URL + wildcard.ReplaceAllString(r.Path, "x"), Body: "{}"},
			call{Method: http.MethodPost, URL: owner.URL + r.Procedure, Body: "{}"},
		)
	}
	return all
}

// In an earlier version, every route answered requests without a token.
func TestRoutesRequireToken(t *testing.T) {
	owner, mux := served(t, t.TempDir())
	defer http.DefaultClient.CloseIdleConnections()
	for _, c := range calls(t, owner, mux) {
		for _, token := range []string{"", "x", owner.Token[1:], owner.Token + "x"} {
			c.Token = token
			c.make()
			require.Equal(t, http.StatusUnauthorized, c.Status, "%s %s with the token %q: %s", c.Method, c.URL, token, c.Error)
		}
	}
	for _, open := range []string{"/healthz", "/readyz"} {
		c := call{Method: http.MethodGet, URL: owner.URL + open}
		c.make()
		require.Equal(t, http.StatusOK, c.Status, c.Error)
	}
	c := call{Method: http.MethodGet, URL: owner.URL + "/v1/runs", Token: owner.Token}
	c.make()
	require.Equal(t, http.StatusOK, c.Status, c.Error)
}

// In an earlier version, a stranger could make the server hold a header of a megabyte for each connection.
func TestLargeHeadersAreRejected(t *testing.T) {
	owner, _ := served(t, t.TempDir())
	defer http.DefaultClient.CloseIdleConnections()
	for _, token := range []string{strings.Repeat("x", contract.MaxHeaderBytes/2), strings.Repeat("x", 2*contract.MaxHeaderBytes)} {
		c := call{Method: http.MethodGet, URL: owner.URL + "/healthz", Token: token}
		c.make()
		want := http.StatusOK
		if len(token) > contract.MaxHeaderBytes {
			want = http.StatusRequestHeaderFieldsTooLarge
		}
		require.Equal(t, want, c.Status, c.Error)
	}
}

// In an earlier version, another user of the machine could list, start and cancel runs, and could make the server fold
// bytes that no ledger contained.
func TestOtherUsersAreRejected(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	dir := filepath.Join(t.TempDir(), ".servo")
	owner, mux := served(t, dir)
	cookie := login(t, owner)
	requests := []call{{Read: filepath.Join(dir, "owner.json")}, {Read: filepath.Join(dir, "keys.json")}, {Read: filepath.Join(dir, "lock")}}
	for _, c := range calls(t, owner, mux) {
		requests = append(requests, c)
		if runtime.GOOS == "linux" {
			c.Token = owner.Token // as if the token had leaked
			requests = append(requests, c)
			c.Token, c.Cookie, c.Site = "", cookie, "same-origin" // as if the cookie had leaked
			requests = append(requests, c)
		}
	}
	for _, path := range []string{"/", "/w/acme/prod/", "/assets/x.js", "/login?code=x"} {
		requests = append(requests, call{Method: http.MethodGet, URL: owner.URL + path, Cookie: cookie})
	}
	input, err := json.Marshal(requests)
	require.NoError(t, err)
	// The test binary is in a folder that other users cannot enter. The path /proc/self/exe works without access to that
	// folder.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stderr = "/", []string{beStranger + "=1"}, bytes.NewReader(input), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	output, err := cmd.Output()
	require.NoError(t, err)
	var answered []call
	require.NoError(t, json.Unmarshal(output, &answered))
	require.Len(t, answered, len(requests))
	for _, c := range answered {
		switch {
		case c.Read != "":
			require.Contains(t, c.Error, fs.ErrPermission.Error(), c.Read)
		case (c.Token != "" || c.Cookie != "") && !strings.Contains(c.URL, "/callbacks/"):
			require.Equal(t, http.StatusForbidden, c.Status, "%s %s with the owner's token or cookie: %s", c.Method, c.URL, c.Error)
		case c.Token == "" && c.Cookie == "":
			require.Equal(t, http.StatusUnauthorized, c.Status, "%s %s: %s", c.Method, c.URL, c.Error)
		}
	}
}

func TestStackNoticesThatItsFolderIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), ".servo")
	s := start(t, dir)
	require.NoError(t, s.CheckFolder())
	require.NoError(t, os.Rename(dir, dir+".old"))
	require.ErrorContains(t, s.CheckFolder(), "was deleted or replaced while this process served it: start again")
	require.NoError(t, embedded.MakeFolder(dir))
	other := start(t, dir)
	require.NoError(t, other.CheckFolder())
	require.ErrorContains(t, s.CheckFolder(), "was deleted or replaced")
	require.NoError(t, other.Close())
}

func TestStateFolderIsPrivate(t *testing.T) {
	mode := func(path string) fs.FileMode {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	dir := filepath.Join(t.TempDir(), "project", ".servo")
	// An owner of another build may have left owner.json.new with a wider mode. The file with the token must not keep
	// this mode.
	require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	require.NoError(t, embedded.MakeFolder(dir))
	require.Equal(t, fs.FileMode(0o700), mode(dir))
	ignored, err := os.ReadFile(filepath.Join(dir, ".gitignore"))
	require.NoError(t, err)
	require.Equal(t, "*\n", string(ignored))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "owner.json.new"), nil, 0o644))
	s := start(t, dir)
	for _, name := range []string{"owner.json", "keys.json", "lock"} {
		require.Equal(t, fs.FileMode(0o600), mode(filepath.Join(dir, name)), name)
	}
	require.NoError(t, s.Close())

	for given, want := range map[fs.FileMode]fs.FileMode{0o755: 0o755, 0o777: 0o755, 0o770: 0o750, 0o700: 0o700} {
		dir := filepath.Join(t.TempDir(), "state")
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.Chmod(dir, given))
		require.NoError(t, embedded.MakeFolder(dir))
		require.Equal(t, want, mode(dir), "a folder of mode %v", given)
	}
}

// In an earlier version, a client could send the bytes of an entry, and the server folded them although no ledger
// contained the entry.
func TestCompactRouteRejectsEntryBytes(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	owner, err := embedded.ReadOwner(dir)
	require.NoError(t, err)
	entry := ids.NewSource(s.Workspace().Clock.Now, nil).New()
	before, err := s.Current(t.Context())
	require.NoError(t, err)
	for _, name := range []string{"data", "DATA"} {
		c := call{
			Method: http.MethodPost, URL: owner.URL + "/v1/compact", Token: owner.Token,
			Body: fmt.Sprintf(`{"tenant":"acme","workspace":"prod","entries":[%q],%q:{"0":"{}"}}`, entry, name),
		}
		c.make()
		require.Equal(t, http.StatusForbidden, c.Status, c.Error)
	}
	after, err := s.Current(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Revision, after.Revision)
	_, _, err = s.Workspace().Store.Get(t.Context(), ledger.Key(s.Workspace().Domain, entry))
	require.Error(t, err)
	http.DefaultClient.CloseIdleConnections()
}
