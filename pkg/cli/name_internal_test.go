package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHelpNamesProgramAsCalled(t *testing.T) {
	for called, want := range map[string]string{
		"/usr/local/bin/servo": "servo", "servo": "servo", "./servo-cloud": "servo-cloud", "/tmp/main": "servo", "": "servo",
	} {
		a := &app{Env: Env{Program: "/opt/servo-0.1.0/servo-0.1.0", Name: called}}
		require.Equal(t, want, a.name(), called)
	}
}
