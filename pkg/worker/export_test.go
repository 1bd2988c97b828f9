package worker

// SetMachine sets the number of cores and the memory that the worker divides among its tasks.
func (w *Worker) SetMachine(cores int, memory int64) {
	w.machine = machine{memory: memory, cores: cores}
	w.memory.capacity = memory
}

// Rest waits until the worker has nothing to do: no task runs, and no files are merged.
func (w *Worker) Rest() { w.life.running.Wait() }
