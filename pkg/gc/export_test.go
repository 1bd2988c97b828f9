package gc

// WithLimits limits the objects of a batch and of a materialization.
func (o Options) WithLimits(batch, version int) Options {
	o.batch, o.version = batch, version
	return o
}
