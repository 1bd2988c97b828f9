package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// A request is either decoded completely or rejected: no misspelt field and no trailing data is
// ignored.
func FuzzAcceptedRequestsAreDecodedCompletely(f *testing.F) {
	good, err := json.Marshal(StartRequest{
		Assets: []string{"raw/events"}, Partitions: []string{"date=2025-01-01..2025-01-31"}, RunKey: "k", Labels: map[string]string{"why": "x"},
	})
	require.NoError(f, err)
	for _, seed := range []string{
		string(good), string(good[:len(good)/2]), string(good) + `{"all":true}`, string(good) + "]", `{"all":true}`, `{"asets":[]}`,
		`{"all":"yes"}`, `{"labels":{"a":1}}`, `{"all":true,"all":false}`, "null", "[]", "", " ",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		read := func(body []byte) (StartRequest, error) {
			r := httptest.NewRequest(http.MethodPost, "/v1/runs", bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/json; charset=utf-8")
			var request StartRequest
			return request, decode(r, &request)
		}
		got, err := read(body)
		if err != nil {
			require.Equal(t, http.StatusBadRequest, statusOf(err))
			require.ErrorContains(t, err, "invalid request body: ")
			return
		}
		require.True(t, len(body) == 0 || json.Valid(body))
		stored, err := json.Marshal(got)
		require.NoError(t, err)
		again, err := read(stored)
		require.NoError(t, err)
		twice, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(stored), string(twice))
	})
}

func TestWrongTypesAreNamedInWords(t *testing.T) {
	for body, want := range map[string]string{
		`{"all":"yes"}`:               `"all" must be true or false, got a string`,
		`{"assets":"a/b"}`:            `"assets" must be a list of strings, got a string`,
		`{"assets":[1]}`:              `must be a string, got a number`,
		`{"partitions":{"date":"x"}}`: `"partitions" must be a list of strings, got an object`,
		`{"run_key":7}`:               `"run_key" must be a string, got a number`,
		`{"labels":["a"]}`:            `"labels" must be an object, got a list`,
		`[]`:                          `it must be an object, got a list`,
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/runs", bytes.NewReader([]byte(body)))
		r.Header.Set("Content-Type", "application/json")
		var request StartRequest
		err := decode(r, &request)
		require.ErrorContains(t, err, "invalid request body: ", body)
		require.ErrorContains(t, err, want, body)
		require.NotContains(t, err.Error(), "Go ", body)
	}
}
