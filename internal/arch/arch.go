// Package arch contains only tests. They check imports between packages, invariants, links and
// language.
package arch
