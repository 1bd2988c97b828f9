package contract

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnsignedIsCanonicalWithoutSignature(t *testing.T) {
	for name, tc := range map[string]struct{ data, want string }{
		"last": {`{"auth":{"key_id":"k","signature":"s"},"a":1}`, `{"a":1,"auth":{"key_id":"k"}}`},
		"first, before another": {
			`{ "auth": {"zone": [ "signature" ], "\u0073ignature": {"auth": {}} } }`, `{"auth":{"zone":["signature"]}}`,
		},
		"in the middle": {`{"auth":{"a":{"signature":1},"z":2,"signature":null}}`, `{"auth":{"a":{"signature":1},"z":2}}`},
		"alone":         {`{"auth":{"signature":"s"},"signature":"t"}`, `{"auth":{},"signature":"t"}`},
		"missing":       {`{"auth":{"key_id":"k"}}`, `{"auth":{"key_id":"k"}}`},
		"numbers":       {`{"n":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001,-0],"auth":{}}`, `{"auth":{},"n":[333333333.3333333,1e+30,4.5,0.002,1e-27,0]}`},
		"UTF-16 order":  {`{"\ufb33":1,"\ud83d\ude00":2,"auth":{},"\u20ac":3}`, "{\"auth\":{},\"\u20ac\":3,\"\U0001f600\":2,\"\ufb33\":1}"},
		"escapes":       {`{"auth":{},"s":"\u003c\u000f\n\/\""}`, `{"auth":{},"s":"<\u000f\n/\""}`},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.data
			got, err := unsigned([]byte(tc.data))
			require.NoError(t, err)
			require.Equal(t, tc.want, string(got))
			require.Equal(t, before, tc.data)
		})
	}
	for name, data := range map[string]string{
		"not JSON": `{"auth":{}`, "more than one value": `{"auth":{}} {}`, "a list": `[]`, "no auth": `{}`, "auth is a list": `{"auth":[]}`,
		"duplicate name": `{"auth":{},"a":1,"a":2}`, "duplicate name, escaped": `{"auth":{"signature":"s","\u0073ignature":"t"}}`,
		"not UTF-8": "{\"auth\":{\"key_id\":\"\xff\"}}", "half a character": `{"auth":{},"s":"\ud83d"}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := unsigned([]byte(data))
			require.Error(t, err)
		})
	}
}
