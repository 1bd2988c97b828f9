package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
)

// Viewer serves the web page of a store that other processes change, such as a bucket. The viewer itself changes
// nothing, and the routes that it is given must only read.
type Viewer struct {
	// URL is the address at which the viewer serves.
	URL string

	browsers *browsers
	listener net.Listener
	server   *http.Server
}

// View begins to listen. It uses the domain, the address, the routes, the page and the clock of the options. View keeps
// the token of the server secret. So only browsers that have logged in with [Viewer.LoginURL] can reach the routes.
func View(ctx context.Context, opts Options, e *engine.Engine) (*Viewer, error) {
	if err := CheckListen(opts.Listen); err != nil {
		return nil, err
	}
	v := &Viewer{browsers: newBrowsers(contract.Keyring{}, opts.Clock.Now)}
	var err error
	if v.listener, v.URL, err = listen(ctx, opts.Listen); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	opts.Routes(mux, e, nil)
	v.browsers.registerPage(mux, opts.Page, opts.Domain, v.URL)
	handleUnknown(mux)
	v.server = newServer(mux, newToken(), v.browsers)
	return v, nil
}

// LoginURL returns an address that logs in one browser, once.
func (v *Viewer) LoginURL() string { return v.browsers.loginURL(v.URL) }

// Serve answers requests until the context is done.
func (v *Viewer) Serve(ctx context.Context) error {
	v.server.BaseContext = func(net.Listener) context.Context { return ctx }
	// Close only closes connections, so its error is irrelevant.
	stop := context.AfterFunc(ctx, func() { _ = v.server.Close() })
	defer stop()
	if err := v.server.Serve(v.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", v.URL, err)
	}
	return ctx.Err()
}
