// Package arch contains only tests. They check the imports between packages, the map of packages, the tests of
// invariants, and the links and the language of documents.
package arch
