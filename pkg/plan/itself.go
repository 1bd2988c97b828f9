package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// An asset may read its own earlier partitions. For example, a running balance reads the balance of the day before.
// In a run, the tasks of such an asset depend on each other, in the order of time. The tasks form no cycle, because
// the window ends before the period of the reader, and a task depends only on tasks of earlier periods.

// ReadsItself reports whether the asset reads partitions of itself.
func (a *Asset) ReadsItself() bool { return slices.Contains(a.Deps, a.Key) }

// CheckItself returns an error if the asset reads itself and its declaration does not allow this.
func (a *Asset) CheckItself() error {
	switch example := a.selfExample(); {
	case a.Partitions.Time() == nil:
		return errors.New("an asset can read itself only if it is partitioned by time, and then only its earlier periods")
	case !a.Work.HasFiles():
		return errors.New("it has no output to read (output: none)")
	case a.backward() != nil:
		return fmt.Errorf("%w: add %s", a.backward(), example)
	case a.dep(a.Key).RequireQuality:
		return errors.New("require_quality has no effect on an asset that reads itself: remove it")
	case len(quality.DeclaredColumns(a.Work.Checks)) == 0 && (a.Work.SQL != "" || a.Work.InputFormat == FormatCSV):
		return errors.New("its first partitions read no rows of the asset, so its columns must be declared: add columns: {NAME: TYPE}")
	}
	return nil
}

// backward returns an error if a partition would read the same period or a later period of its own asset.
func (a *Asset) backward() error {
	read := a.dep(a.Key)
	if read.Map.Op == "" && len(read.Map.Dimensions) == 0 {
		return errors.New("a partition cannot read itself, only earlier periods")
	}
	m, err := Mapping(a, a)
	if err != nil {
		return err
	}
	at := a.Partitions.Time()
	if at == nil {
		return errors.New("it has no dimension of time")
	}
	if op, known := m.Of(at.Name); !known || m.ReadsAll() || op.Op != space.Window || op.To >= 0 {
		return errors.New("a partition can read only earlier periods of its own asset: the window must end at -1 or before")
	}
	return nil
}

// selfExample returns an example for error messages: a declaration that makes the asset read its own partition of the
// previous period.
func (a *Asset) selfExample() string {
	at := a.Partitions.Time()
	if at == nil {
		return ""
	}
	return fmt.Sprintf("deps: [{asset: %s, map: {%s: {window: [-1, -1]}}}]", a.Key, at.Name)
}

// inOrder returns partitions of an asset in the order in which tasks of one run execute. If the asset reads itself,
// this is the order of time.
func inOrder(a *Asset, keys []string) []string {
	if !a.ReadsItself() {
		return keys
	}
	return a.Partitions.ByTime(keys)
}

// withoutItself returns the dependencies of an asset except itself.
func withoutItself(a *Asset) []ids.AssetKey {
	if !a.ReadsItself() {
		return a.Deps
	}
	return slices.DeleteFunc(slices.Clone(a.Deps), func(dep ids.AssetKey) bool { return dep == a.Key })
}

// EmptyRows returns a query that returns no rows. Its columns are the columns that the checks of an asset declare,
// followed by the additional columns "more".
func EmptyRows(checks []quality.Check, more []space.Column) string {
	var list []string
	add := func(name, kind string) {
		list = append(list, "CAST(NULL AS "+kind+`) AS "`+strings.ReplaceAll(name, `"`, `""`)+`"`)
	}
	declared := quality.DeclaredColumns(checks)
	for _, c := range declared {
		add(c.Name, c.Type)
	}
	for _, c := range more {
		if !slices.ContainsFunc(declared, func(d quality.ColumnType) bool { return strings.EqualFold(d.Name, c.Name) }) {
			add(c.Name, c.Type)
		}
	}
	return "SELECT " + strings.Join(list, ", ") + " WHERE false"
}
