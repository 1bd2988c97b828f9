package gc

// WithLimits limits the objects of a page and of a materialization.
func (o Options) WithLimits(page, version int) Options {
	o.page, o.version = page, version
	return o
}
