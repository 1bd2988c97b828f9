// Package servov1 contains the messages of the API. It is generated from proto/servo/v1 by `make proto`. This package
// is not a stable API.
package servov1
