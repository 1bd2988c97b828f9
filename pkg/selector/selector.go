// Package selector selects assets by a small language: names, patterns, tags, owners, their upstream and downstream
// assets, and the operators "and", "or" and "not". The package is pure: it takes the assets of a project and returns
// the assets that a selection matches. This package is not a stable API.
//
//	raw/events   clean.daily   daily      one asset, by its key or by its name alone
//	raw/*   */daily   *                   assets by pattern; * does not match a slash
//	tag:gold   owner:ana                  assets with a tag or an owner
//	+x   x+   +x+   2+x   x+2             x with its upstream or downstream assets, or some levels of them
//	A and B   A or B   not A   (A)        in this order of precedence: not, and, or
package selector

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of a selection.
const (
	MaxBytes    = 4 << 10
	MaxOperands = 100
)

// Error is a mistake in a selection: its syntax, or a name that matches no asset.
type Error struct{ text string }

// Error returns the text of the mistake.
func (e *Error) Error() string { return e.text }

func errorf(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Selection is a parsed selection. It is immutable.
type Selection struct{ root *expr }

// ParseAll returns a selection of every asset that one of the selections matches.
func ParseAll(texts []string) (*Selection, error) {
	var parsed []*Selection
	for _, text := range texts {
		s, err := Parse(text)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, s)
	}
	return Union(parsed...), nil
}

// Union returns a selection of every asset that one of the selections matches.
func Union(selections ...*Selection) *Selection {
	if len(selections) == 1 {
		return selections[0]
	}
	e := &expr{op: opOr}
	for _, s := range selections {
		e.args = append(e.args, s.root)
	}
	return &Selection{e}
}

// String returns the canonical text. If the selection is within the limits, Parse parses this text and returns an
// equal selection.
func (s *Selection) String() string {
	var b strings.Builder
	s.root.write(&b, 0)
	return b.String()
}

type op int

// The operations, in the order of precedence: an operation that binds more tightly has a greater number.
const (
	opOr op = iota + 1
	opAnd
	opNot
	opNear
	opName
	opPattern
	opTag
	opOwner
)

// allLevels is the value of the fields up and down that means all levels.
const allLevels = -1

// expr is a node of the syntax tree of a selection.
type expr struct {
	op op
	// text is the name, the pattern, the tag or the owner.
	text string
	// args are the operands: one for the operations `not` and `near`, at least two for `and` and `or`.
	args []*expr
	// up and down are the numbers of upstream and downstream levels that the operation `near` adds.
	up, down int
}

// write writes the canonical text of e. The parameter parent is the operation that has e as an operand. If this
// operation requires parentheses around e, write adds them.
func (e *expr) write(b *strings.Builder, parent op) {
	if e.op < parent || e.op == parent && parent != opNot && parent < opName {
		b.WriteByte('(')
		defer b.WriteByte(')')
	}
	switch e.op {
	case opOr, opAnd:
		word := " or "
		if e.op == opAnd {
			word = " and "
		}
		for i, arg := range e.args {
			if i > 0 {
				b.WriteString(word)
			}
			arg.write(b, e.op)
		}
	case opNot:
		b.WriteString("not ")
		e.args[0].write(b, opNot)
	case opNear:
		b.WriteString(levels(e.up, "", "+"))
		e.args[0].write(b, opNear)
		b.WriteString(levels(e.down, "+", ""))
	case opTag, opOwner:
		b.WriteString(e.operand())
	case opName, opPattern:
		b.WriteString(e.text)
	}
}

// levels formats a number of levels and its plus sign. The caller passes the plus sign in one of the parameters
// before and after, and "" in the other.
func levels(n int, before, after string) string {
	switch n {
	case 0:
		return ""
	case allLevels:
		return before + after
	}
	return before + strconv.Itoa(n) + after
}

// operand returns the canonical text of a name, a pattern, a tag or an owner.
func (e *expr) operand() string {
	text := e.text
	if strings.ContainsAny(text, " \t\n\r()+") {
		text = `"` + text + `"`
	}
	switch e.op { //nolint:exhaustive // only operands
	case opTag:
		return tagPrefix + text
	case opOwner:
		return ownerPrefix + text
	}
	return text
}

// The prefixes of operands that are not names.
const (
	tagPrefix   = "tag:"
	ownerPrefix = "owner:"
)
