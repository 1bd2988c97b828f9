package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/space"
)

// The windows of an asset's first partitions may begin before the declared start of an upstream asset, and the windows
// of its last partitions may end after the declared end. If the start or the end moves, only these partitions read
// other periods than before. So only the fingerprints of these partitions cover the start or the end of the upstream
// asset.

// Windows are the dependencies that an asset reads through windows. The fingerprint of the asset itself does not
// cover their declared ranges.
type Windows []window

type window struct {
	dep   ids.AssetKey
	reads *space.Reader
}

// Clip says at which ends the windows of a partition are cut off by the declared range of an upstream asset.
type Clip uint8

// Values of [Clip].
const (
	ClipStart Clip = 1 << iota // a window begins before the declared start
	ClipEnd                    // a window ends after the declared end

	clips = ClipStart + ClipEnd + 1 // the number of values of Clip
)

// Windows returns the dependencies that an asset reads through windows, without those that only its checks read.
func (r *Readers) Windows(a *Asset) (Windows, error) {
	var all Windows
	for _, dep := range a.Deps {
		reads, err := r.Of(a.Key, dep)
		if err != nil {
			return nil, err
		}
		if reads.ReadsWindow() && !slices.Contains(a.CheckDeps, dep) {
			all = append(all, window{dep, reads})
		}
	}
	return all, nil
}

// Clip reports whether the windows of the given partitions are cut off at the start, at the end or at both.
func (w Windows) Clip(partitions ...string) (Clip, error) {
	clip := Clip(0)
	for _, partition := range partitions {
		for i := range w {
			start, end, err := w[i].reads.Clipped(partition)
			if err != nil {
				return 0, err
			}
			if start {
				clip |= ClipStart
			}
			if end {
				clip |= ClipEnd
			}
		}
	}
	return clip, nil
}

// Code returns the fingerprint that a task records. The parameter "code" is the fingerprint of the task's asset, and
// "clip" says at which ends windows of the task's partitions are cut off.
func (w Windows) Code(code string, clip Clip) string {
	if code == "" || clip == 0 {
		return code
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s", code)
	for i := range w {
		at := w[i].reads.Upstream.Time()
		if clip&ClipStart != 0 {
			fmt.Fprintf(hash, "|%s start %s", w[i].dep, at.Start)
		}
		if clip&ClipEnd != 0 {
			fmt.Fprintf(hash, "|%s end %s", w[i].dep, at.End)
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:len(code)]
}

// Codes returns, for each value of [Clip], the fingerprints that the task of a partition with this clip may have
// recorded. The parameter "code" is the fingerprint of the asset. There may be several fingerprints for one clip,
// because a task with a batch records a fingerprint that depends on the clips of all its partitions.
func (w Windows) Codes(code string) [][]string {
	if len(w) == 0 {
		return [][]string{{code}} // the method Clip returns 0 for all partitions
	}
	all := make([][]string, clips)
	for clip := range clips {
		for batch := range clips {
			if batch&clip == clip {
				all[clip] = append(all[clip], w.Code(code, batch))
			}
		}
	}
	return all
}
