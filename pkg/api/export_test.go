package api

import (
	"io"
	"net/http"
)

// InProcess passes requests to a handler as [Local] does.
type InProcess struct{ Handler http.Handler }

// Do implements [connect.HTTPClient].
func (p InProcess) Do(r *http.Request) (*http.Response, error) {
	w := newAnswer()
	p.Handler.ServeHTTP(w, r)
	return &http.Response{
		StatusCode: w.status, Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}
