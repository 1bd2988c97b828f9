// Package arch contains only tests. They check imports between packages, the map of packages,
// invariants, links and language.
package arch
