package worker

// SetMachine replaces the machine whose cores and memory the worker divides.
func (w *Worker) SetMachine(cores int, memory int64) {
	w.machine = machine{memory: memory, cores: cores}
	w.memory.capacity = memory
}

// Rest waits until the worker has nothing to do: no task runs, and no files are merged.
func (w *Worker) Rest() { w.running.Wait() }
