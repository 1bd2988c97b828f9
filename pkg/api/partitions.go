package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxScanned limits how many partitions are examined for one page. If few partitions match the filter, a page may
// have fewer rows than the request asks for.
const maxScanned = 20_000

// ListPartitions implements the call.
func (s *server) ListPartitions(ctx context.Context, r *servov1.ListPartitionsRequest) (*servov1.ListPartitionsResponse, error) {
	p, err := s.project()
	if err != nil {
		return nil, err
	}
	asset, err := assetNamed(p, r)
	if err != nil {
		return nil, err
	}
	opened, err := s.page(ctx, r, largePage)
	if err != nil {
		return nil, err
	}
	list := &servov1.ListPartitionsResponse{Revision: opened.snap.Revision, AssetKey: asset.Key.String()}
	evaluation, err := p.evaluate(ctx, opened.snap, opened.now)
	if err != nil {
		return nil, err
	}
	failed, err := s.memo.assetsAt(momentOf(opened.snap, p, opened.now)).failedAt(ctx, opened, p, asset.Key)
	if err != nil {
		return nil, opened.failed(err)
	}
	calendar, after, first := view.Calendar(opened.snap.State, opened.now), opened.after, opened.after == ""
	for scanned := 0; scanned < maxScanned; {
		rows, err := view.PartitionPage(opened.snap.Partitions(ctx, asset.Key.String(), after), asset, calendar, after, opened.size+1)
		if err != nil {
			return nil, opened.failed(err)
		}
		if asset.Partitions == nil { // the only partition has the empty key, and a search for keys after "" does not find it
			rows = onlyPartition(opened.snap.Partitions(ctx, asset.Key.String(), ""), first)
		}
		statuses, err := evaluation.Statuses(asset.Key, keysOf(rows))
		if err != nil {
			return nil, opened.failed(err)
		}
		for i := range rows {
			if len(list.Partitions) == opened.size {
				list.NextPageToken = opened.next(after)
				return list, nil
			}
			after = rows[i].Key
			if status := string(failed.Status(after, statuses[i])); len(r.GetStatus()) == 0 || slices.Contains(r.GetStatus(), status) {
				list.Partitions = append(list.Partitions, partitionOf(&rows[i], status))
			}
		}
		if scanned += len(rows); len(rows) <= opened.size {
			return list, nil
		}
	}
	list.NextPageToken = opened.next(after)
	return list, nil
}

// onlyPartition returns the partition of an asset without dimensions.
func onlyPartition(rows view.PartitionRows, first bool) []view.Partition {
	if !first {
		return nil
	}
	for row, err := range rows {
		if err == nil && row.Status == state.Materialized {
			return []view.Partition{{Status: view.PartitionMaterialized, Row: row}}
		}
	}
	return []view.Partition{{Status: view.PartitionMissing}}
}

func keysOf(rows []view.Partition) []string {
	keys := make([]string, len(rows))
	for i := range rows {
		keys[i] = rows[i].Key
	}
	return keys
}

func partitionOf(p *view.Partition, status string) *servov1.Partition {
	one := &servov1.Partition{PartitionKey: p.Key, Status: status}
	if p.Key != "" {
		one.Partition = p.Name()
	}
	if p.Row != nil {
		one.Output = &servov1.Output{
			MaterializationId: p.Row.MaterializationID, RunId: p.Row.RunID, TaskKey: p.Row.TaskKey, At: timestamp(p.Row.MaterializedAt),
			RowCount: p.Row.RowCount, ByteSize: p.Row.ByteSize, Code: p.Row.Code,
		}
	}
	return one
}

// defaultBuckets is the number of buckets if the request does not set one. The web page draws this number of buckets
// for each asset in a list.
const defaultBuckets = 60

// GetPartitionSummary implements the call.
func (s *server) GetPartitionSummary(ctx context.Context, r *servov1.GetPartitionSummaryRequest) (*servov1.PartitionSummary, error) {
	p, snap, asset, err := s.findAsset(ctx, r)
	if err != nil {
		return nil, err
	}
	return s.summary(ctx, &page{snap: snap, now: s.now(ctx, snap)}, p, asset, r)
}

func (s *server) summary(
	ctx context.Context, at *page, p *Project, asset *plan.Asset, r *servov1.GetPartitionSummaryRequest,
) (*servov1.PartitionSummary, error) {
	judged := s.memo.assetsAt(momentOf(at.snap, p, at.now))
	all, err := judged.search(ctx, at, p)
	if err != nil {
		return nil, err
	}
	failures := all[asset.Key.String()]
	of := inputsAt(at, judged.projectIndex(p)).identify(asset, failures)
	return judged.summary(ctx, r, at.snap.Revision, of, func(ctx context.Context) (*servov1.PartitionSummary, error) {
		return summarize(ctx, p, at.snap, asset, engine.FailedOf(failures, asset.Key), r, at.now)
	})
}

// summarize divides the partitions of an asset into buckets and counts them by status in each bucket.
func summarize(
	ctx context.Context, p *Project, snap *snapshot.Snapshot, asset *plan.Asset, failed engine.Failed, r *servov1.GetPartitionSummaryRequest,
	now time.Time,
) (*servov1.PartitionSummary, error) {
	evaluation, err := p.evaluate(ctx, snap, now)
	if err != nil {
		return nil, err
	}
	all, err := evaluation.Partitions(asset.Key)
	if err != nil {
		return nil, err
	}
	sum := &servov1.PartitionSummary{Revision: snap.Revision, AssetKey: asset.Key.String(), Total: &servov1.PartitionSummary_Bucket{}}
	at, err := dimensionOf(asset, r.GetDimension())
	if err != nil {
		return nil, err
	}
	if at >= 0 {
		sum.Dimension = asset.Partitions.Dimensions[at].Name
	}
	values := map[string]*servov1.PartitionSummary_Bucket{}
	for _, one := range all {
		value := ""
		if at >= 0 {
			parts, err := asset.Partitions.Parse(one.Key)
			if err != nil {
				continue // the key is from an earlier declaration of the partitions
			}
			value = parts[at]
		}
		if value < r.GetFrom() || r.GetTo() != "" && value >= r.GetTo() {
			continue
		}
		bucket := values[value]
		if bucket == nil {
			bucket = &servov1.PartitionSummary_Bucket{From: value, To: value}
			values[value] = bucket
		}
		status := failed.Status(one.Key, one.Status)
		count(bucket, status)
		count(sum.Total, status)
	}
	sum.Buckets = merged(values, int(r.GetBuckets()))
	if n := len(sum.Buckets); n > 0 {
		sum.Total.From, sum.Total.To = sum.Buckets[0].GetFrom(), sum.Buckets[n-1].GetTo()
	}
	return sum, nil
}

// dimensionOf returns the index of the dimension by whose values partitions are put into buckets, or -1 for an asset
// without partitions.
func dimensionOf(asset *plan.Asset, name string) (int, error) {
	if asset.Partitions == nil {
		if name != "" {
			return 0, invalid("dimension", "asset %s has no partitions", asset.Key)
		}
		return -1, nil
	}
	var names []string
	for i := range asset.Partitions.Dimensions {
		d := &asset.Partitions.Dimensions[i]
		if name == d.Name || name == "" && asset.Partitions.Time() == d {
			return i, nil
		}
		names = append(names, d.Name)
	}
	if name != "" {
		return 0, invalid("dimension", "is unknown: %q; asset %s has %s", name, asset.Key, strings.Join(names, ", "))
	}
	return 0, nil // without a time dimension, the first dimension is the default
}

func count(b *servov1.PartitionSummary_Bucket, status staleness.Status) {
	switch status {
	case staleness.Missing:
		b.Missing++
	case staleness.Fresh:
		b.Fresh++
	case staleness.Stale:
		b.Stale++
	case engine.StatusFailed:
		b.Failed++
	case staleness.Unexpected:
		b.Unexpected++
	}
}

// merged returns the buckets in the order of their values. If there are more buckets than limit, it merges neighbours,
// so that each bucket has about the same number of values.
func merged(values map[string]*servov1.PartitionSummary_Bucket, limit int) []*servov1.PartitionSummary_Bucket {
	if limit == 0 {
		limit = defaultBuckets
	}
	names := make([]string, 0, len(values))
	for value := range values {
		names = append(names, value)
	}
	slices.Sort(names)
	n := min(limit, len(names))
	buckets := make([]*servov1.PartitionSummary_Bucket, n)
	for i, name := range names {
		one, at := values[name], i*n/len(names)
		if buckets[at] == nil {
			buckets[at] = one
			continue
		}
		b := buckets[at]
		b.To = one.GetTo()
		b.Missing += one.GetMissing()
		b.Fresh += one.GetFresh()
		b.Stale += one.GetStale()
		b.Failed += one.GetFailed()
		b.Unexpected += one.GetUnexpected()
	}
	return buckets
}

// ExplainPartition implements the call.
func (s *server) ExplainPartition(ctx context.Context, r *servov1.ExplainPartitionRequest) (*servov1.PartitionExplanation, error) {
	p, snap, asset, err := s.findAsset(ctx, r)
	if err != nil {
		return nil, err
	}
	key, err := partitionKey(asset, r.GetPartition())
	if err != nil {
		return nil, err
	}
	now := s.now(ctx, snap)
	evaluation, err := p.evaluate(ctx, snap, now)
	if err != nil {
		return nil, err
	}
	x, err := engine.ExplainPartition(ctx, snap, evaluation, asset.Key, key)
	if err != nil {
		return nil, err
	}
	failed, err := s.memo.assetsAt(momentOf(snap, p, now)).failedAt(ctx, &page{snap: snap, now: now}, p, asset.Key)
	if err != nil {
		return nil, err
	}
	without := x.Status
	x.Status = failed.Status(key, without)
	into := fill(&servov1.PartitionExplanation{}, x)
	if x.Status == engine.StatusFailed {
		into.Failure = failureOf(failed[key])
		into.Headline = "failed in its newest run: " + into.Failure.GetError()
		if without != staleness.Missing {
			into.Headline += "; its output " + x.Headline
		}
	}
	return into, nil
}

// partitionKey returns the key of a partition. The text is "date=2025-01-15;region=eu", for example, or the key itself.
func partitionKey(asset *plan.Asset, text string) (string, error) {
	const field = "partition"
	switch {
	case asset.Partitions == nil && text != "":
		return "", invalid(field, "asset %s has no partitions", asset.Key)
	case asset.Partitions == nil:
		return "", nil
	}
	partition := ids.Partition{}
	if strings.HasPrefix(text, "{") {
		parsed, err := ids.ParsePartition(text)
		if err != nil {
			return "", invalid(field, "%w", err)
		}
		partition = parsed
	} else {
		for pair := range strings.SplitSeq(text, ";") {
			dimension, value, found := strings.Cut(pair, "=")
			if !found || partition[dimension] != "" {
				return "", invalid(field, "%q is not a partition of %s: write a value for each dimension, such as date=2025-01-15;region=eu", text, asset.Key)
			}
			partition[dimension] = value
		}
	}
	if _, err := asset.Partitions.Parse(partition.Key()); err != nil {
		return "", invalid(field, "%w", err)
	}
	return partition.Key(), nil
}
