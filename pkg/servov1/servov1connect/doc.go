// Package servov1connect contains the clients and handlers of the API's services. It is generated from proto/servo/v1
// by `make proto`. This package is not a stable API.
package servov1connect
