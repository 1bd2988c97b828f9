// Package arch holds no code: its tests are the map of the packages, and fail
// when the code and the map disagree.
package arch
