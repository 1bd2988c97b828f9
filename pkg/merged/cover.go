package merged

import "slices"

// Run is a sequence of outputs that a reader reads, and that a merged file contains in the same order.
type Run struct {
	// From and To are positions in the list of the outputs that a reader reads. To is exclusive.
	From, To int
	// File is the position of the merged file in the list of files. First is the position of the first of these outputs
	// in the cells of that file.
	File, First int
}

// Cover returns the sequences of outputs for which a reader may use merged files, in the order in which it reads them.
// A sequence contains exactly the outputs that the reader would otherwise read one by one, in the same order.
func (l Limits) Cover(read []Candidate, files []*File) []Run {
	type place struct{ file, cell int }
	places := map[string][]place{} // by URI
	for i, f := range files {
		for j := range f.Cells {
			places[f.Cells[j].URI] = append(places[f.Cells[j].URI], place{i, j})
		}
	}
	var runs []Run
	for i := 0; i < len(read); {
		best := Run{From: i, To: i}
		for _, at := range places[read[i].URI] {
			cells, n := files[at.file].Cells[at.cell:], 0
			for n < len(cells) && i+n < len(read) && read[i+n].Cell == cells[n] && read[i+n].Schema == files[at.file].Schema {
				n++
			}
			if n > best.To-best.From {
				best = Run{i, i + n, at.file, at.cell}
			}
		}
		if best.To-best.From < l.MinRun {
			i = max(best.To, i+1)
			continue
		}
		runs = append(runs, best)
		i = best.To
	}
	return runs
}

// Group is a sequence of outputs to merge.
type Group struct {
	From, To int
	// Replaces are the positions of the merged files that are no longer needed after the outputs of the group are
	// merged.
	Replaces []int
}

// Groups returns the outputs to merge: sequences of small neighbouring outputs that have the same columns and are not
// in a merged file yet. The outputs of a merged file may directly precede such a sequence. If the file and the sequence
// fit into one merged file, the group includes the outputs of the file and replaces the file. So a merged file grows
// with its asset. A stale merged file counts as if it did not exist, and a group that contains partitions of the stale
// file replaces that file. A file is stale if newer outputs exist for more than a tenth of its cells.
func (l Limits) Groups(read []Candidate, files []*File) []Group {
	stale := staleFiles(read, files)
	owner := make([]int, len(read)) // the merged file that covers an output, or -1
	for i := range owner {
		owner[i] = -1
	}
	whole := map[int]Run{} // the runs that contain all cells of their file
	for _, run := range l.Cover(read, files) {
		if stale[run.File] {
			continue
		}
		if run.To-run.From == len(files[run.File].Cells) {
			whole[run.File] = run
		}
		for i := run.From; i < run.To; i++ {
			owner[i] = run.File
		}
	}
	open := func(i int) bool {
		return owner[i] < 0 && read[i].URI != "" && read[i].Fixed && read[i].Bytes < SmallBytes
	}
	var groups []Group
	for i := 0; i < len(read); {
		if !open(i) {
			i++
			continue
		}
		g, bytes := Group{From: i, To: i}, int64(0)
		for g.To < len(read) && open(g.To) && read[g.To].Schema == read[g.From].Schema && g.To-g.From < l.MaxCells && bytes+read[g.To].Bytes <= MaxBytes {
			bytes += read[g.To].Bytes
			g.To++
		}
		i = g.To
		if g.To-g.From < l.MinCells {
			continue
		}
		if g.From > 0 && owner[g.From-1] >= 0 {
			at := owner[g.From-1]
			run, all := whole[at]
			if f := files[at]; all && run.To == g.From && f.Schema == read[g.From].Schema && g.To-run.From <= l.MaxCells && bytes+f.Bytes <= MaxBytes {
				g.From, g.Replaces = run.From, []int{at}
			}
		}
		for at := range files {
			if stale[at] && overlaps(read[g.From:g.To], files[at]) {
				g.Replaces = append(g.Replaces, at)
			}
		}
		groups = append(groups, g)
	}
	return groups
}

// staleFiles returns the positions of the stale files: newer outputs exist for more than a tenth of their cells.
func staleFiles(read []Candidate, files []*File) map[int]bool {
	now := make(map[string]Cell, len(read))
	for i := range read {
		if read[i].URI != "" {
			now[read[i].Partition] = read[i].Cell
		}
	}
	stale := map[int]bool{}
	for i, f := range files {
		changed := 0
		for _, c := range f.Cells {
			if current, ok := now[c.Partition]; ok && current != c {
				changed++
			}
		}
		if changed*staleDenominator > len(f.Cells) {
			stale[i] = true
		}
	}
	return stale
}

func overlaps(read []Candidate, f *File) bool {
	return slices.ContainsFunc(read, func(c Candidate) bool {
		return slices.ContainsFunc(f.Cells, func(o Cell) bool { return o.Partition == c.Partition })
	})
}
