package project

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMisspeltHeaderNeedsFields(t *testing.T) {
	for text, want := range map[string]string{
		"/* servoo\ntags: [a]\n*/ SELECT 1":                  "/* servoo",
		"/* sevro\ntags: [a]\nchekcs: []\n*/ SELECT 1":       "/* sevro", // the word resembles servo: one known field is enough
		"/* fields:\ntags: [a]\nchecks: []\n*/ SELECT 1":     "/* fields:",
		"/*\ntags: [a]\n*/ SELECT 1":                         "/*\n",
		"-- Orders.\n/* tags: [a] */ SELECT 1":               "/* ",
		"/* fields\ntags: [a]\nnote: see the wiki\n*/":       "",
		"/* serve: the cache */ SELECT 1":                    "",
		"/* These are the orders. tags: none */ SELECT 1":    "",
		"/*+ a hint */ SELECT 1":                             "",
		"/* tags: [a]":                                       "",
		"/* Servo materializes this. */ SELECT 1 /* x: 1 */": "",
	} {
		start, fields, ok := findMisspelt([]byte(text))
		require.Equal(t, want != "", ok, text)
		if ok {
			require.Equal(t, want, text[start:fields], text)
		}
	}
}
