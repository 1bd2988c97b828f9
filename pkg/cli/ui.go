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

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
)

func (a *app) uiCommand() *cobra.Command {
	var open bool
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Print an address that logs a browser in to the web page of `servo dev`",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := a.settings()
			if err != nil {
				return err
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
	return cmd
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
