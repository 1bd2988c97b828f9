// Package servov1 has the messages of the API. It is generated from proto/servo/v1 by `make proto`. This
// package is not a stable API.
package servov1
