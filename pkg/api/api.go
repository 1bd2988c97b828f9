// Package api serves the API of one domain: runs, tasks, logs, assets, partitions, schedules, backfills and alerts.
// This package is not a stable API.
//
// proto/servo/v1 describes the API. Each call is served in four protocols on the same port: Connect, gRPC, gRPC-Web
// and REST. Package rest translates REST requests into Connect calls within the process. The guard intercepts every
// call, whatever its protocol.
package api

import (
	"cmp"
	"context"
	_ "embed" // openAPI
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/api/jsonpb"
	"github.com/servo-orchestration/servo/pkg/api/rest"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/servov1/servov1connect"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
)

// Project is the project that the API serves.
type Project struct {
	Name   string
	Root   string
	Assets []plan.Asset
	// Graph is the graph of Assets. If Graph is nil, each call that needs the graph builds it.
	Graph *plan.Graph
	// Data lists the folders that queries may read: see [plan.Request].
	Data []string
	// MaxParallelism limits how many tasks of a run execute at once; 0: no limit.
	MaxParallelism int32
	// Release is the hash of the deployed release that the assets belong to. Source is the hash of the archive of the
	// release's files. If the release has an archive, workers do not need Root.
	Release, Source string
}

// Config holds the dependencies of the calls.
type Config struct {
	Engine *engine.Engine
	// Project returns the newest valid project, or an error if there is none.
	Project func() (*Project, error)
	// User returns the verified user that the headers of a request identify. Runs and events record this user.
	User func(http.Header) string
	// OpenQuery opens a session for one SQL text. The session reads the state at asOf, which is a revision or a time.
	// If asOf is empty, the session reads the newest revision. OpenQuery also returns the revision. If OpenQuery is
	// nil, the server rejects queries.
	OpenQuery func(ctx context.Context, sql, asOf string) (QuerySession, Revision, error)
	// Logs reads the logs of the attempts that this process executes. Nil: this process executes no attempts.
	Logs Logs
	// Logger records internal errors; nil: [slog.Default].
	Logger *slog.Logger
	// PageKey is a secret of the state folder. It signs page tokens, so that tokens stay valid when the server restarts.
	// Nil: a restart invalidates all tokens.
	PageKey []byte
	// If ReadOnly is true, the server rejects all calls that change something.
	ReadOnly bool
	// Version is the version of the program.
	Version string
}

const (
	// maxBody is the largest accepted request, in bytes.
	maxBody = 4 << 20
	// Responses of at least compressFrom bytes are compressed if the caller accepts compressed responses.
	compressFrom = 4 << 10
)

// openAPI is the OpenAPI document of the REST routes.
//
//go:embed openapi.json
var openAPI []byte

// Register adds the routes of the API to a mux: /servo.v1.*/ for Connect, gRPC and gRPC-Web, /v1/ for REST,
// /openapi.json, /healthz and /readyz.
func Register(mux *http.ServeMux, cfg Config) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	s := &server{Config: cfg, pages: newPages(cfg.PageKey, cfg.Engine.At), streams: newStreams()}
	calls := s.handler()
	for _, path := range servicePaths() {
		mux.Handle(path, calls)
	}
	mux.Handle("/v1/", rest.New(calls))
	mux.Handle("POST /v1/query", &queries{
		server: s, running: make(chan struct{}, maxQueries), waiting: make(chan struct{}, maxWaiting), stuck: make(chan struct{}, maxStuckQueries),
	})
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(openAPI) // the client has disconnected if this fails
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_ = httpx.JSON(w, http.StatusOK, map[string]string{"status": "ok"}) // the client has disconnected if this fails
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if _, err := cfg.Engine.Current(r.Context()); err != nil {
			httpx.Refuse(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		_ = httpx.JSON(w, http.StatusOK, map[string]string{"status": "ready"}) // the client has disconnected if this fails
	})
}

// server implements all services.
type server struct {
	Config
	pages   *pages
	streams *streams
	memo    memo
}

// options returns the options of the handlers of all services.
func (s *server) options() connect.HandlerOption {
	allowed := permissions(s.ReadOnly)
	g := &guard{
		domain: s.Engine.Domain(), logger: s.Logger, user: s.User,
		may: func(_ http.Header, p servov1.Permission_Value) bool { return slices.Contains(allowed, p) },
	}
	return connect.WithHandlerOptions(
		connect.WithInterceptors(g), connect.WithReadMaxBytes(maxBody), connect.WithCompressMinBytes(compressFrom),
		connect.WithCodec(codec{"json"}), connect.WithCodec(codec{"json; charset=utf-8"}),
		connect.WithRecover(func(ctx context.Context, spec connect.Spec, _ http.Header, reason any) error {
			s.Logger.ErrorContext(ctx, "a call has panicked", slog.String("call", spec.Procedure), slog.Any("reason", reason))
			return connectError(refuse(internal, "internal error: see the log of the server"))
		}),
	)
}

// handler returns the handler of Connect, gRPC and gRPC-Web.
func (s *server) handler() http.Handler {
	options := s.options()
	mux := http.NewServeMux()
	mux.Handle(servov1connect.NewAccessServiceHandler(s, options))
	mux.Handle(servov1connect.NewAssetServiceHandler(s, options))
	mux.Handle(servov1connect.NewAutomationServiceHandler(s, options))
	mux.Handle(servov1connect.NewBackfillServiceHandler(s, options))
	mux.Handle(servov1connect.NewExecutionServiceHandler(s, options))
	mux.Handle(servov1connect.NewKeySetServiceHandler(s, options))
	mux.Handle(servov1connect.NewLogServiceHandler(s, options))
	mux.Handle(servov1connect.NewPartitionServiceHandler(s, options))
	mux.Handle(servov1connect.NewQualityServiceHandler(s, options))
	mux.Handle(servov1connect.NewScheduleServiceHandler(s, options))
	mux.Handle(servov1connect.NewStateServiceHandler(s, options))
	return mux
}

// servicePaths are the paths below which services are served.
func servicePaths() []string {
	names := []string{
		servov1connect.AccessServiceName, servov1connect.AssetServiceName, servov1connect.AutomationServiceName, servov1connect.BackfillServiceName,
		servov1connect.ExecutionServiceName, servov1connect.KeySetServiceName, servov1connect.LogServiceName, servov1connect.PartitionServiceName,
		servov1connect.QualityServiceName, servov1connect.ScheduleServiceName, servov1connect.StateServiceName,
	}
	for i, name := range names {
		names[i] = "/" + name + "/"
	}
	return names
}

// codec encodes messages as the API's JSON for Connect, and decodes them.
type codec struct{ name string }

// Name implements [connect.Codec].
func (c codec) Name() string { return c.name }

// Marshal implements [connect.Codec].
func (codec) Marshal(m any) ([]byte, error) {
	message, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("api: %T is not a message", m)
	}
	return jsonpb.Marshal(message)
}

// Unmarshal implements [connect.Codec].
func (codec) Unmarshal(data []byte, m any) error {
	message, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("api: %T is not a message", m)
	}
	return jsonpb.Unmarshal(data, message)
}

// Response headers. revisionHeader contains the revision that the response shows. timelineHeader contains the
// timeline of this revision, because a rebuild of the state starts a new timeline.
const (
	revisionHeader = "Servo-Revision"
	timelineHeader = "Servo-Timeline"
)

// current returns the snapshot that a call reads, by default the newest one. It also writes the revision of this
// snapshot into a header of the response.
func (s *server) current(ctx context.Context) (*snapshot.Snapshot, error) {
	snap, err := s.snapshot(ctx)
	if err == nil {
		reveal(ctx, snap)
	}
	return snap, err
}

// reveal writes the revision of a snapshot, and its timeline, into headers of the response.
func reveal(ctx context.Context, snap *snapshot.Snapshot) {
	call, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return
	}
	Revision{snap.Revision, snap.Timeline}.writeTo(call.ResponseHeader())
}

// writeTo writes a revision, and its timeline, into headers of a response.
func (r Revision) writeTo(header http.Header) {
	header.Set(revisionHeader, strconv.FormatInt(r.Number, 10))
	if r.Timeline != "" { // a new domain has published nothing
		header.Set(timelineHeader, r.Timeline)
	}
}

// actingFor returns an engine that acts for the caller. The conditions of the call, such as If-Match, apply to the
// engine's changes.
func (s *server) actingFor(ctx context.Context) *engine.Engine {
	return s.Engine.As(engine.User(s.user(ctx))).Under(conditionsIn(ctx))
}

// user returns the name of the caller.
func (s *server) user(ctx context.Context) string { return s.User(header(ctx)) }

// header returns the header of the request.
func header(ctx context.Context) http.Header {
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
		return call.RequestHeader()
	}
	return http.Header{}
}

// project returns the project, or an error that says why there is none.
func (s *server) project() (*Project, error) {
	p, err := s.Project()
	if err != nil {
		return nil, withKind(wrongState, err)
	}
	return p, nil
}

// graph returns the graph of the project's assets.
func (p *Project) graph() (*plan.Graph, error) {
	if p.Graph != nil {
		return p.Graph, nil
	}
	return plan.NewGraph(p.Assets)
}

// evaluate returns an evaluation of the staleness of the project's assets in a snapshot.
func (p *Project) evaluate(ctx context.Context, snap *snapshot.Snapshot, now time.Time) (*staleness.Evaluation, error) {
	g, err := p.graph()
	if err != nil {
		return nil, err
	}
	return engine.Evaluate(ctx, snap, g, now), nil
}

// page opens a page of a listing.
func (s *server) page(ctx context.Context, r pageRequest, fallback int) (*page, error) {
	p, err := s.pages.open(ctx, r, fallback, s.Engine.Now(), s.snapshot)
	if err == nil {
		reveal(ctx, p.snap)
		if readingOf(ctx).asOf != "" {
			p.now = s.now(ctx, p.snap)
		}
	}
	return p, err
}

// Default numbers of rows on a page.
const (
	defaultPage = 50
	largePage   = 1000 // for listings with small rows
)
