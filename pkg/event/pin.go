package event

// RevisionPinned is a person's command to keep a revision, with the outputs that it shows.
type RevisionPinned struct {
	// CommandID makes the command unique. Among the commands about the same revision, the command with the greatest id
	// wins.
	CommandID string `json:"command_id"`
	Revision  int64  `json:"revision"`
	// Until is when the pin ends. If Until is not after the time of the command, the pin ends immediately.
	Until  Time   `json:"until"`
	Reason string `json:"reason"`
}

func (c *checker) revisionPinned(p *RevisionPinned) {
	c.ulid("payload.command_id", p.CommandID)
	c.count("payload.revision", p.Revision)
	c.time("payload.until", p.Until)
	c.text("payload.reason", p.Reason, MaxMessage)
}
