package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/ui"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func (a *app) uiCommand() *cobra.Command {
	var open bool
	var listen string
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Print an address that logs a browser in to the web page of `servo dev`, or serve the page of a bucket for reading",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := a.settings()
			if err != nil {
				return err
			}
			if inCloud(a.stateOf(settings)) {
				return a.view(cmd.Context(), settings, listen, open)
			}
			if cmd.Flags().Changed("listen") {
				return usagef("--listen is for the page of a bucket; `servo dev` serves the page of %s, and has a flag --listen of its own", a.stateOf(settings))
			}
			o, ok := owner(cmd.Context(), a.options(settings).Dir)
			if !ok {
				return errors.New("no process serves the page: start `servo dev`")
			}
			address, err := login(cmd.Context(), o)
			if err != nil {
				return err
			}
			if open {
				return a.browse(cmd.Context(), address)
			}
			_, err = fmt.Fprintln(a.Stdout, address)
			return err
		},
	}
	cmd.Flags().BoolVar(&open, "open", false, "open the address in the browser instead of printing it")
	cmd.Flags().StringVar(&listen, "listen", devAddress, "loopback address that serves the page of a bucket")
	return cmd
}

// view serves the web page of a bucket, for reading only, until the user ends the command. The services in the cloud
// execute the runs; the assets are those of the deployed release.
func (a *app) view(ctx context.Context, settings *project.Project, listen string, open bool) (err error) {
	options := a.options(settings)
	options.Listen, options.Page = listen, ui.Handler()
	if err := embedded.CheckListen(listen); err != nil {
		return usagef("%w; listen on 127.0.0.1", err)
	}
	s, err := a.openCloud(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	snap, err := s.Current(ctx)
	if err != nil {
		return err
	}
	current := &loaded{project: settings, absent: errNotDeployed(settings)}
	if sha := snap.State.Release(); sha != "" {
		a.useRelease(ctx, s.Engine, current, readDeployment, sha)
	}
	options.Routes = func(mux *http.ServeMux, e *engine.Engine, _ *worker.Worker) {
		cfg := a.apiConfig(e, current)
		cfg.ReadOnly = true
		api.Register(mux, cfg)
	}
	viewer, err := embedded.View(ctx, options, s.Engine)
	if err != nil {
		return err
	}
	a.note("project %s in %s, for reading only, serving on %s", a.style.bold(settings.Name), s.dir, a.style.bold(viewer.URL))
	address := viewer.LoginURL()
	a.note("web page, with a login for one browser: %s", address)
	if open {
		if err := a.browse(ctx, address); err != nil {
			a.warn("%v", err)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return viewer.Serve(ctx) })
	g.Go(func() error {
		return a.followDeployments(ctx, s.Engine, current, readDeployment, func(*project.Project) error { return nil })
	})
	if err = g.Wait(); errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// login asks the owner of a state folder for an address that logs a browser in.
func login(ctx context.Context, o embedded.Owner) (address string, err error) {
	client := o.Client()
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL+"/v1/logins", strings.NewReader("{}"))
	if err != nil {
		return "", fmt.Errorf("log a browser in: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := client.Do(r)
	if err != nil {
		return "", fmt.Errorf("log a browser in: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	body, err := io.ReadAll(io.LimitReader(response.Body, contract.MaxResponseBytes))
	if err != nil {
		return "", fmt.Errorf("log a browser in: %w", err)
	}
	var made embedded.Login
	switch {
	case response.StatusCode == http.StatusNotFound:
		return "", fmt.Errorf("process %d owns the state folder and serves no page: wait until it ends, and start `servo dev`", o.PID)
	case response.StatusCode != http.StatusCreated:
		return "", fmt.Errorf("log a browser in: process %d answered %s: %s", o.PID, response.Status, body)
	}
	if err := json.Unmarshal(body, &made); err != nil {
		return "", fmt.Errorf("log a browser in: read the answer of process %d: %w", o.PID, err)
	}
	return made.URL, nil
}

// browse opens an address in the user's browser.
func (a *app) browse(ctx context.Context, address string) error {
	program := cmp.Or(a.getenv("BROWSER"), map[string]string{"darwin": "open"}[runtime.GOOS], "xdg-open")
	cmd := exec.CommandContext(ctx, program, address)
	cmd.Env = a.Environ
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("open the browser with %s: %w: %s: open %s yourself", program, err, strings.TrimSpace(string(out)), address)
	}
	return nil
}
