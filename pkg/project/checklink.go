package project

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// allChecks returns the checks of an asset. The checks of its contract come first.
func (a *declared) allChecks() []check {
	return slices.Concat(a.contract, a.drift(), a.checks)
}

// driftOff is the value of schema_drift that turns off the comparison of schemas.
const driftOff = "off"

// drift returns the check that the field schema_drift defines.
func (a *declared) drift() []check {
	if a.Work.SchemaDrift == "" || a.Work.SchemaDrift == driftOff {
		return nil
	}
	severity := quality.Severity(strings.ToUpper(a.Work.SchemaDrift))
	if severity == quality.Critical {
		severity = ""
	}
	return []check{{Check: quality.Check{Name: quality.SchemaDrift, Kind: quality.SchemaDrift, Severity: severity}, at: a.at}}
}

// checkedFields reports the fields about checks in an asset without files. n is the mapping that declares the asset.
func (f yamlFile) checkedFields(n *yaml.Node, a *declared) {
	if a.Work.HasFiles() {
		return
	}
	if hasField(n, "columns") {
		f.fail(n, "remove columns, or output: none", "the asset has no output whose columns could be checked")
	}
	if hasField(n, "schema_drift") {
		f.fail(n, "remove schema_drift, or output: none", "the asset has no output whose columns could be compared")
	}
	for i := range a.checks {
		if c := &a.checks[i]; c.PhaseOf() == quality.Post && c.Kind != quality.Command {
			f.report(c.at, "use a command, or phase: pre", "the asset has no rows to check (output: none)")
		}
	}
}

// parseChecks finds the tables that the SQL of checks reads. These tables become dependencies of the asset.
func (l *loader) parseChecks(ctx context.Context) error {
	type owned struct {
		asset *declared
		check *check
	}
	var batch []owned
	var queries []string
	for i := range l.assets {
		a := &l.assets[i]
		for j := range a.checks {
			c := &a.checks[j]
			if c.reads != nil {
				a.deps = append(a.deps, *c.reads)
			}
			if c.Kind == quality.SQL {
				batch, queries = append(batch, owned{a, c}), append(queries, c.SQL)
			}
		}
	}
	for len(batch) > 0 {
		n := min(len(batch), batchQueries)
		parsed, err := l.options.ParseSQL(ctx, queries[:n])
		if err != nil {
			return fmt.Errorf("parse checks: %w", err)
		}
		for i, o := range batch[:n] {
			l.addCheckRefs(o.asset, o.check, parsed[i])
		}
		batch, queries = batch[n:], queries[n:]
	}
	return nil
}

// addCheckRefs adds dependencies to an asset: the tables that a check reads, except the asset itself.
func (l *loader) addCheckRefs(a *declared, c *check, p Parsed) {
	if p.Bad != nil {
		l.report(c.place(p.Bad.Offset), "", "check %s: %s", c.Name, p.Bad.Message)
		return
	}
	l.readVars(a, p.Variables, c.place)
	l.refuseSpan(a, c, p.Variables)
	for _, ref := range p.Refs {
		key, what := ref.classify()
		if what == refElse {
			continue
		}
		at := c.place(ref.Offset)
		at.word = ref.name()
		switch {
		case key != a.Key:
			a.deps = append(a.deps, dep{key: key, at: at, query: true, check: true})
		case c.PhaseOf() == quality.Pre:
			l.report(at, "remove phase: pre", "check %s reads %s, whose new rows exist only after the work", c.Name, at.word)
		}
	}
}

// place returns the position of a byte in a check's SQL. The position is exact only if the SQL is on one line.
// Otherwise, it is the start of the SQL.
func (c *check) place(offset int) place {
	at := c.sqlAt
	if offset > 0 && !strings.Contains(c.SQL, "\n") {
		at.column += len([]rune(c.SQL[:min(offset, len(c.SQL))]))
	}
	return at
}

// columnSets finds and caches the columns of assets, in lower case.
type columnSets struct {
	known map[ids.AssetKey]*declared
	sets  map[ids.AssetKey]map[string]bool
}

// columnsOf returns the columns of an asset, from its contract or its query. It returns nil if they are not known.
func (s *columnSets) columnsOf(key ids.AssetKey) map[string]bool {
	if set, ok := s.sets[key]; ok {
		return set
	}
	s.sets[key] = nil // ends the search if the asset reads itself through other assets
	a := s.known[key]
	if a == nil {
		return nil
	}
	set := map[string]bool{}
	switch {
	case len(a.contract) > 0:
		for _, t := range a.contract[0].Params.Types {
			set[strings.ToLower(t.Name)] = true
		}
	case a.Work.SQL == "" || !a.output.Complete:
		return nil
	default:
		for name := range a.output.Named {
			set[name] = true
		}
		for _, ref := range a.output.Rest {
			upstream, what := ref.classify()
			columns := s.columnsOf(upstream)
			if what != refAsset || columns == nil {
				return nil
			}
			for name := range columns {
				set[name] = true
			}
		}
	}
	for _, c := range a.PartitionColumns() {
		set[c.Name] = true
	}
	s.sets[key] = set
	return set
}

// linkChecks reports checks that have the same name, and checks of columns that do not exist. It sets the checks of
// the asset's work.
func (l *loader) linkChecks(a *declared, columns *columnSets) {
	all := a.allChecks()
	first := map[string]place{}
	gates := map[quality.Severity]int{}
	for i := range all {
		c := &all[i]
		if at, twice := first[c.Name]; twice {
			l.report(c.at, "set name", "two checks are called %s: first at %s:%d:%d", c.Name, at.file, at.line, at.column)
		}
		first[c.Name] = c.at
		l.checkColumnsExist(a.Key, c, columns)
		if at := a.Partitions.Time(); c.Params.Watch != nil && c.Params.Watch.Weekday && (at == nil || at.Kind == space.Weekly || at.Kind == space.Monthly || at.Kind == space.Yearly) {
			l.report(c.at, "remove seasonal", "check %s compares with the same day of the week, but %s has no partitions of days or shorter periods", c.Name, a.Key)
		}
		if gates[c.SeverityOf()]++; gates[c.SeverityOf()] == quality.MaxGates+1 && (c.SeverityOf() == quality.Critical || c.SeverityOf() == quality.Error) {
			l.report(c.at, "combine some of them, or use severity: warning", "an asset may have at most %d checks of severity %s",
				quality.MaxGates, strings.ToLower(string(c.SeverityOf())))
		}
		a.Work.Checks = append(a.Work.Checks, c.Check)
	}
	if len(all) > 0 {
		a.Work.Samples = a.samples
	}
}

// checkColumnsExist reports columns that a check names but that do not exist. These are columns of the asset, or of the
// asset that a relationship reads.
func (l *loader) checkColumnsExist(key ids.AssetKey, c *check, columns *columnSets) {
	report := func(at place, name string, of ids.AssetKey) {
		set := columns.columnsOf(of)
		if set == nil || set[strings.ToLower(name)] {
			return
		}
		var names []string
		for known := range set {
			names = append(names, known)
		}
		slices.Sort(names)
		suggestion := didYouMean(plan.Suggest(strings.ToLower(name), names))
		if suggestion == "" {
			suggestion = "it has " + strings.Join(names[:min(len(names), maxShown)], ", ")
		}
		l.report(at, suggestion, "check %s: %s has no column %s", c.Name, of, quoteShort(name))
	}
	for i, name := range c.Columns {
		report(c.columnsAt[i], name, key)
	}
	if c.reads != nil {
		report(c.at, c.Params.Field, c.reads.key)
	}
}

// maxShown is the maximum number of names in a suggestion.
const maxShown = 20
