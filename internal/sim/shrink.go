package sim

import "reflect"

// Shrink returns the smallest failing world that it finds, and its result. It removes faults, then machines, requests
// and tasks. Before it runs a world, it calls more(), and stops if the result is false.
func Shrink(w World, more func() bool, run func(World) *Result) (World, *Result) {
	found := run(w)
	if found.Err() == nil {
		return w, found
	}
	for shrunk := true; shrunk; {
		shrunk = false
		for _, smaller := range smaller(w) {
			if !more() {
				return w, found
			}
			if r := run(smaller); r.Err() != nil {
				w, found, shrunk = smaller, r, true
				break
			}
		}
	}
	return w, found
}

// smaller returns smaller worlds, each with one reduction. The largest reductions come first.
func smaller(w World) []World {
	var worlds []World
	try := func(change func(*World)) {
		c := w
		change(&c)
		if c != w {
			worlds = append(worlds, c)
		}
	}
	try(func(c *World) { c.Faults = Faults{} })
	faults := reflect.TypeFor[Faults]()
	for i := range faults.NumField() {
		try(func(c *World) { reflect.ValueOf(&c.Faults).Elem().Field(i).SetInt(0) })
	}
	try(func(c *World) { c.Requests = 1 })
	for _, field := range []struct {
		of    func(*World) *int
		least int
	}{
		{func(c *World) *int { return &c.Tasks }, 1},
		{func(c *World) *int { return &c.Requests }, 1},
		{func(c *World) *int { return &c.Large }, 1},
		{func(c *World) *int { return &c.Days }, 1},
		{func(c *World) *int { return &c.Domains }, 1},
		{func(c *World) *int { return &c.Compactors }, 1},
		{func(c *World) *int { return &c.Dispatchers }, 1},
		{func(c *World) *int { return &c.Workers }, 1},
		{func(c *World) *int { return &c.Clients }, 1},
		{func(c *World) *int { return &c.Readers }, 0},
		{func(c *World) *int { return &c.Sweepers }, 1},
		{func(c *World) *int { return &c.Collectors }, 0},
		{func(c *World) *int { return &c.Schedules }, 0},
		{func(c *World) *int { return &c.Mergers }, 0},
		{func(c *World) *int { return &c.Merging }, 0},
		{func(c *World) *int { return &c.Batched }, 0},
		{func(c *World) *int { return &c.Chained }, 0},
		{func(c *World) *int { return &c.Wide }, 0},
		{func(c *World) *int { return &c.Backfills }, 0},
		{func(c *World) *int { return &c.Alerts }, 0},
		{func(c *World) *int { return &c.Online }, 0},
		{func(c *World) *int { return &c.Minutes }, 1},
	} {
		if *field.of(&w) <= field.least { // for example, Days stays 0 in a small world: 1 would make it large
			continue
		}
		try(func(c *World) { n := field.of(c); *n = max(field.least, *n/2) })
		try(func(c *World) { n := field.of(c); *n = max(field.least, *n-1) })
	}
	try(func(c *World) { c.PageSize = 1000 })
	try(func(c *World) { c.FullEvery = 0 })
	try(func(c *World) { c.Parquet = false })
	try(func(c *World) { c.Begin = 0 })
	return worlds
}
