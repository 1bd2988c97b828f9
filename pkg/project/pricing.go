package project

import (
	"math/big"
	"regexp"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/estimate"
)

// maxPrice is the maximum price, in dollars. Up to this price, the cost of a task fits into an int64.
const maxPrice = 1000

// dollar is a dollar in nano-dollars. Prices are whole numbers of nano-dollars.
const dollar = 1_000_000_000

// validPrice limits the digits and the exponent of a price, so that exact arithmetic with it stays cheap.
var validPrice = regexp.MustCompile(`^[0-9]{1,4}(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,2})?$`)

var pricingField = other("pricing", pricingFields.shape(shape{
	Description: "Prices in dollars, with at most 9 decimals. Estimates of `servo plan`, `servo run --dry-run` and `servo backfill create` use them. " +
		"A price that is absent is 0. Default: estimates have no cost.",
	Examples: []any{map[string]any{"cpu_second": 0.000024, "gb_second": 0.0000025}},
}), func(f yamlFile, n *yaml.Node, p *Project) {
	p.Pricing = &estimate.Prices{}
	f.mapping(n, "pricing", pricingFields.fields(f, p.Pricing))
})

var pricingFields = table[estimate.Prices]{
	priceField("cpu_second", "A second of CPU time of a query or a command.", func(p *estimate.Prices) *int64 { return &p.CPUSecond }),
	priceField("gb_second", "A gigabyte of memory that a worker reserves for a task, for a second.", func(p *estimate.Prices) *int64 { return &p.GBSecond }),
	priceField("written_gb", "A gigabyte of output.", func(p *estimate.Prices) *int64 { return &p.WrittenGB }),
	priceField("task", "The fixed price of a task.", func(p *estimate.Prices) *int64 { return &p.Task }),
}

func priceField(name, about string, at func(*estimate.Prices) *int64) field[estimate.Prices] {
	return other(name, shape{Type: "number", Minimum: new(int64(0)), Maximum: new(int64(maxPrice)), Description: about},
		func(f yamlFile, n *yaml.Node, p *estimate.Prices) {
			if v, ok := f.price(n, name); ok {
				*at(p) = v
			}
		})
}

// price reads a price in dollars as nano-dollars.
func (f yamlFile) price(n *yaml.Node, what string) (int64, bool) {
	if !f.noLeadingZero(n, what) {
		return 0, false
	}
	if tag := n.ShortTag(); n.Kind != yaml.ScalarNode || tag != "!!int" && tag != "!!float" {
		f.fail(n, "", "%s must be a number of dollars, got %s", what, kindOf(n))
		return 0, false
	}
	text := n.Value
	nano := new(big.Rat)
	ok := validPrice.MatchString(text)
	if ok {
		nano.SetString(text)
		nano.Mul(nano, big.NewRat(dollar, 1))
	}
	switch {
	case !ok || !nano.IsInt():
		f.fail(n, "write dollars with at most 9 decimals, as in 0.000024", "%s is %s; must be between 0 and %d", what, quoteShort(text), maxPrice)
		return 0, false
	case nano.Num().Cmp(big.NewInt(maxPrice*dollar)) > 0:
		f.fail(n, "", "%s is %s; must be between 0 and %d", what, text, maxPrice)
		return 0, false
	}
	return nano.Num().Int64(), true
}
