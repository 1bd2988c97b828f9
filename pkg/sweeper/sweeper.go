// Package sweeper is anti-entropy: the backup to every notification, hand-over
// and queue. For each domain it has the ledger listed and folded, so that
// nothing that was announced to nobody is forgotten, and then has the dispatcher
// look for what was dispatched and never came back.
package sweeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Config is what a sweeper works with.
type Config struct {
	// Domains lists the domains to sweep.
	Domains func(context.Context) ([]ids.Domain, error)
	// Compact folds what is in a domain's ledger.
	Compact func(context.Context, ids.Domain, compactor.Request) (compactor.Result, error)
	// Repair has the dispatcher of a domain sweep the state of a revision.
	Repair func(ctx context.Context, d ids.Domain, revision int64) error
	// OnSwept is told what each sweep came to. It may be nil.
	OnSwept func(Result, error)
	Logger  *slog.Logger
}

// Sweeper sweeps domains.
type Sweeper struct{ Config }

// New makes a sweeper.
func New(cfg Config) *Sweeper { return &Sweeper{cfg} }

// Result is what a sweep came to.
type Result struct {
	Domains int `json:"domains"`
	// Folded are groups of the ledger that nobody had announced.
	Folded int `json:"folded"`
	Failed int `json:"failed"`
}

// Sweep sweeps every domain. One that fails does not keep the others from it.
func (s *Sweeper) Sweep(ctx context.Context) (Result, error) {
	result, err := s.sweepAll(ctx)
	if s.OnSwept != nil {
		s.OnSwept(result, err)
	}
	return result, err
}

func (s *Sweeper) sweepAll(ctx context.Context) (Result, error) {
	domains, err := s.Domains(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("list domains to sweep: %w", err)
	}
	result := Result{Domains: len(domains)}
	var errs []error
	for _, d := range domains {
		folded, err := s.sweep(ctx, d)
		result.Folded += folded
		if err != nil {
			result.Failed++
			errs = append(errs, fmt.Errorf("sweep %s: %w", d, err))
		}
	}
	return result, errors.Join(errs...)
}

func (s *Sweeper) sweep(ctx context.Context, d ids.Domain) (int, error) {
	result, err := s.Compact(ctx, d, compactor.Request{Barrier: true})
	if err != nil {
		return 0, err
	}
	if result.Folded > 0 {
		s.Logger.InfoContext(ctx, "sweep found ledger entries that nobody had announced",
			slog.String("domain", d.String()), slog.Int("groups", result.Folded))
	}
	return result.Folded, s.Repair(ctx, d, result.Revision)
}

// Register adds the sweeper's route to a mux.
func Register(mux *http.ServeMux, s *Sweeper) {
	mux.HandleFunc("POST /v1/sweep", func(w http.ResponseWriter, r *http.Request) {
		result, err := s.Sweep(r.Context())
		if err != nil {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusInternalServerError)
			_ = json.NewEncoder(w).Encode(contract.Problem{
				Title: "Sweep incomplete", Status: http.StatusInternalServerError, Detail: err.Error(),
			})
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(result)
	})
}
