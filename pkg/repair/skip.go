package repair

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

const (
	// skipTries is the number of reads that must fail before [Skip] records a decision. A decision is permanent, so one
	// failed read is not enough.
	skipTries = 3
	// skipPause is the time between these reads.
	skipPause = time.Second
)

// Skip records an operator's decision to continue without a ledger entry that cannot be read, or whose plan cannot be
// read. The next barrier records the entry as a dead letter with the reason SKIPPED. Verifications and rebuilds also
// replace the entry with this dead letter. Skip returns an error if the entry is folded, readable or missing. It
// succeeds if the decision is already recorded.
func Skip(ctx context.Context, cfg Config, s ledger.Skip) error {
	if strings.TrimSpace(s.Reason) == "" {
		return errors.New("skip needs a reason: it is stored with the decision")
	}
	key := ledger.Key(cfg.Domain, s.Entry)
	if _, err := cfg.Store.Head(ctx, key); errors.Is(err, blob.ErrNotFound) {
		return fmt.Errorf("unknown ledger entry %s: %s does not exist", s.Entry, key)
	}
	folded, err := cfg.folded(ctx, s.Entry)
	if err != nil {
		return err
	}
	if folded {
		return fmt.Errorf("ledger entry %s is already folded: nothing to skip", s.Entry)
	}
	for try := range skipTries {
		if try > 0 {
			if err := cfg.Clock.Sleep(ctx, skipPause); err != nil {
				return err
			}
		}
		if err := cfg.read(ctx, s.Entry); err == nil {
			return fmt.Errorf("ledger entry %s can be read: run `servo admin compact` to fold it", s.Entry)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := ledger.WriteSkip(ctx, cfg.Store, cfg.Domain, s); !errors.Is(err, blob.ErrExists) {
		return err
	}
	return nil
}

// read reads an entry and its plans. It returns nil for an entry that the compactor rejects as a whole, because such an
// entry blocks nothing.
func (cfg Config) read(ctx context.Context, entry string) error {
	data, err := archive.NewReader(cfg.Store, cfg.Domain).Read(ctx, entry)
	if _, refused := compactor.RefusedRead(entry, err); refused {
		return nil
	}
	if err != nil {
		return err
	}
	return compactor.FetchPlans(ctx, cfg.Store, cfg.Domain, compactor.Decode(entry, data))
}

// folded reports whether the newest revision has recorded or abandoned an entry.
func (cfg Config) folded(ctx context.Context, entry string) (bool, error) {
	m, err := cfg.Manifests.Load(ctx)
	if errors.Is(err, manifest.ErrNone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	st, err := snapshot.Load(ctx, cfg.Codec, cfg.Manifests, m)
	if err != nil {
		return false, err
	}
	return st.HasEntry(entry) || entry < m.BaseSnapshot.EntriesFrom, nil
}
