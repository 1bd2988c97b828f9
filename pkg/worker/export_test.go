package worker

// SetMachine replaces the machine whose cores and memory the worker divides.
func (w *Worker) SetMachine(cores int, memory int64) {
	w.machine = machine{memory: memory, cores: cores}
	w.memory.capacity = memory
}
