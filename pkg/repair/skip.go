package repair

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
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
	data, err := archive.NewReader(cfg.Store, cfg.Domain).Read(ctx, s.Entry)
	if _, refused := compactor.RefusedRead(s.Entry, err); refused {
		err = nil
	} else if err == nil {
		err = compactor.FetchPlans(ctx, cfg.Store, cfg.Domain, compactor.Decode(s.Entry, data))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return fmt.Errorf("ledger entry %s can be read: run `servo admin compact` to fold it", s.Entry)
	}
	if err := ledger.WriteSkip(ctx, cfg.Store, cfg.Domain, s); !errors.Is(err, blob.ErrExists) {
		return err
	}
	return nil
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
