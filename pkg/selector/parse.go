package selector

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Parse parses a selection.
func Parse(text string) (*Selection, error) {
	switch {
	case len(text) > MaxBytes:
		return nil, errorf("the selection has %d bytes: at most %d are allowed: write several arguments", len(text), MaxBytes)
	case !utf8.ValidString(text):
		return nil, errorf("invalid selection: it is not UTF-8 text")
	case strings.TrimSpace(text) == "":
		return nil, errorf("the selection is empty: name an asset, or write * for all of them")
	}
	p := parser{text: text}
	if err := p.scan(); err != nil {
		return nil, err
	}
	e, err := p.or()
	if err != nil {
		return nil, err
	}
	switch t := p.peek(); t.kind {
	case tokenEnd:
	case ')':
		return nil, p.fail(t, "unexpected )", "remove it, or add ( before it")
	default:
		return nil, p.fail(t, "unexpected "+p.quote(t), `join selections with "and", "or", or "and not"`)
	}
	if p.operands > MaxOperands {
		return nil, errorf("the selection has %d operands: at most %d are allowed: write several arguments", p.operands, MaxOperands)
	}
	return &Selection{e}, nil
}

// token is a word, or one of ( ) +. A part of a word can be in quotes.
type token struct {
	kind       rune
	text       string
	quoted     bool
	start, end int
}

// The kinds of tokens that are not a single character.
const (
	tokenEnd  rune = -1
	tokenWord rune = 'w'
)

type parser struct {
	text     string
	tokens   []token
	next     int
	operands int
}

// Words are separated by the characters in spaces, and end before each character in separators.
const (
	spaces     = " \t\n\r"
	separators = spaces + "()+"
)

// scan splits the text into tokens.
func (p *parser) scan() error {
	for i := 0; i < len(p.text); {
		c := p.text[i]
		switch {
		case strings.IndexByte(spaces, c) >= 0:
			i++
		case strings.IndexByte(separators, c) >= 0:
			p.tokens = append(p.tokens, token{kind: rune(c), text: string(c), start: i, end: i + 1})
			i++
		default:
			t := token{kind: tokenWord, start: i}
			var word strings.Builder
			for i < len(p.text) && strings.IndexByte(separators, p.text[i]) < 0 {
				if p.text[i] != '"' {
					word.WriteByte(p.text[i])
					i++
					continue
				}
				length := strings.IndexByte(p.text[i+1:], '"')
				if length < 0 {
					return p.fail(token{start: i}, "a quote is not closed", `add "`)
				}
				word.WriteString(p.text[i+1 : i+1+length])
				t.quoted = true
				i += length + 2
			}
			t.text, t.end = word.String(), i
			p.tokens = append(p.tokens, t)
		}
	}
	return nil
}

func (p *parser) peek() token { return p.ahead(0) }

func (p *parser) ahead(n int) token {
	if p.next+n >= len(p.tokens) {
		return token{kind: tokenEnd, start: len(p.text), end: len(p.text)}
	}
	return p.tokens[p.next+n]
}

// word consumes the next token if it is the given operator, and reports whether it did.
func (p *parser) word(word string) bool {
	if t := p.peek(); t.kind != tokenWord || t.quoted || t.text != word {
		return false
	}
	p.next++
	return true
}

// fail returns an error at a token.
func (p *parser) fail(at token, what, advice string) error {
	return errorf("invalid selection %q: %s at character %d: %s", p.text, what, utf8.RuneCountInString(p.text[:at.start])+1, advice)
}

func (p *parser) quote(t token) string { return strconv.Quote(p.text[t.start:t.end]) }

func (p *parser) or() (*expr, error)  { return p.list(opOr, "or", p.and) }
func (p *parser) and() (*expr, error) { return p.list(opAnd, "and", p.not) }

// list parses operands with an operator between them.
func (p *parser) list(o op, word string, operand func() (*expr, error)) (*expr, error) {
	first, err := operand()
	if err != nil {
		return nil, err
	}
	e := &expr{op: o, args: []*expr{first}}
	for p.word(word) {
		arg, err := operand()
		if err != nil {
			return nil, err
		}
		e.args = append(e.args, arg)
	}
	if len(e.args) == 1 {
		return first, nil
	}
	return e, nil
}

func (p *parser) not() (*expr, error) {
	if !p.word("not") {
		return p.near()
	}
	arg, err := p.not()
	if err != nil {
		return nil, err
	}
	return &expr{op: opNot, args: []*expr{arg}}, nil
}

// near parses an operand and the plus signs and levels before and after it. No space may separate them from the
// operand.
func (p *parser) near() (*expr, error) {
	e := &expr{op: opNear}
	t := p.peek()
	switch plus := p.ahead(1); {
	case t.kind == '+':
		p.next++
		e.up = allLevels
	case plus.kind == '+' && plus.start == t.end && isNumber(t):
		// In "2+x", the word is a number of levels. In "2+", no operand follows, so the word is the name of an asset.
		after := p.ahead(2)
		if after.start != plus.end || after.kind != tokenWord && after.kind != '(' {
			break
		}
		n, err := p.levels(t)
		if err != nil {
			return nil, err
		}
		p.next += 2
		e.up = n
	}
	if t = p.peek(); e.up != 0 && (t.kind == tokenEnd || p.text[t.start-1] != '+') {
		return nil, p.fail(p.tokens[p.next-1], "a + without an asset after it", "write +raw/x for an asset and its upstream")
	}
	arg, err := p.operand()
	if err != nil {
		return nil, err
	}
	e.args = []*expr{arg}
	if plus := p.peek(); plus.kind == '+' && plus.start > 0 && strings.IndexByte(spaces, p.text[plus.start-1]) < 0 {
		p.next++
		e.down = allLevels
		if t = p.peek(); isNumber(t) && t.start == plus.end {
			if e.down, err = p.levels(t); err != nil {
				return nil, err
			}
			p.next++
		}
	}
	if e.up == 0 && e.down == 0 {
		return arg, nil
	}
	return e, nil
}

func isNumber(t token) bool {
	return t.kind == tokenWord && !t.quoted && strings.Trim(t.text, "0123456789") == ""
}

// maxLevels means all levels: it is greater than the number of levels of any graph.
const maxLevels = 1_000_000

func (p *parser) levels(t token) (int, error) {
	n, err := strconv.Atoi(t.text)
	if err != nil || n < 1 || n > maxLevels {
		return 0, p.fail(t, "invalid number of levels "+p.quote(t), "write 1 or more, or nothing for all levels")
	}
	return n, nil
}

// operand parses a selection in parentheses, or a name, a pattern, a tag or an owner.
func (p *parser) operand() (*expr, error) {
	t := p.peek()
	p.next++
	switch {
	case t.kind == '(':
		e, err := p.or()
		if err != nil {
			return nil, err
		}
		if p.peek().kind != ')' {
			return nil, p.fail(t, "a ( is not closed", "add )")
		}
		p.next++
		return e, nil
	case t.kind == tokenEnd:
		return nil, p.fail(t, "the selection ends", "add an asset, a pattern or tag:NAME")
	case t.kind != tokenWord:
		return nil, p.fail(t, "unexpected "+p.quote(t), "write an asset, a pattern or tag:NAME")
	case !t.quoted && (t.text == "and" || t.text == "or" || t.text == "not"):
		return nil, p.fail(t, "unexpected "+p.quote(t), "write an asset, a pattern or tag:NAME here")
	}
	p.operands++
	return p.leaf(t)
}

// leaf parses a word.
func (p *parser) leaf(t token) (*expr, error) {
	kind, value, colon := strings.Cut(t.text, ":")
	switch {
	case !colon:
		return p.name(t)
	case kind+":" != tagPrefix && kind+":" != ownerPrefix:
		return nil, p.fail(t, "unknown selector "+strconv.Quote(kind+":"), "write tag:NAME or owner:NAME")
	case value == "":
		return nil, p.fail(t, kind+": has no value", "write "+kind+":NAME")
	case kind+":" == ownerPrefix:
		return &expr{op: opOwner, text: value}, nil
	}
	return &expr{op: opTag, text: value}, nil
}

var (
	validName    = regexp.MustCompile(`^([a-z0-9_]+/)?[a-z0-9_]+$`)
	validPattern = regexp.MustCompile(`^(\*|[a-z0-9_*]+/[a-z0-9_*]+)$`)
)

// name parses the name of an asset, or a pattern.
func (p *parser) name(t token) (*expr, error) {
	text := t.text
	if strings.Count(text, ".") == 1 && !strings.Contains(text, "/") {
		text = strings.Replace(text, ".", "/", 1) // accept a name as SQL writes it: namespace.name
	}
	switch {
	case t.quoted:
		return nil, p.fail(t, "quotes around "+p.quote(t), "quotes are for values of tag: and owner:")
	case validName.MatchString(text):
		return &expr{op: opName, text: text}, nil
	case validPattern.MatchString(text):
		return &expr{op: opPattern, text: text}, nil
	case strings.ContainsRune(text, '['):
		return nil, p.fail(t, "a task key "+p.quote(t), "name the asset, and select its partitions with -p or the field partitions")
	case strings.Contains(text, "*") && !strings.Contains(text, "/"):
		return nil, p.fail(t, "a pattern without a namespace, "+p.quote(t), "write */"+text)
	}
	return nil, p.fail(t, "invalid asset name "+p.quote(t), "write namespace/name with a-z, 0-9 and _")
}
