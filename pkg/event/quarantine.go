package event

// Quarantine says how long an output waits for a decision after a check has blocked it.
type Quarantine struct {
	// ExpiresSec is the number of seconds after which the candidate expires.
	ExpiresSec int64 `json:"expires_sec"`
	// If Approve is set, a candidate that expires is published. Otherwise it is rejected.
	Approve bool `json:"approve,omitempty"`
}

// Decisions about a candidate in quarantine.
const (
	DecisionApprove = "approve" // publish it
	DecisionReject  = "reject"  // delete it
)

// MaxQuarantineSec is the longest time that a candidate waits for a decision: 36,500 days.
const MaxQuarantineSec = 36_500 * 24 * 3600

// QuarantineResolved is the command to publish or to delete a candidate in quarantine.
type QuarantineResolved struct {
	// CommandID makes the command unique.
	CommandID string `json:"command_id"`
	Asset     string `json:"asset"`
	Partition string `json:"partition,omitempty"`
	// MaterializationID is the candidate that the writer saw.
	MaterializationID string `json:"materialization_id"`
	// Decision is "approve" or "reject".
	Decision string `json:"decision"`
	Reason   string `json:"reason,omitempty"`
	// CommandKey and Fingerprint deduplicate the command, as in [AutomationCommand].
	CommandKey  string `json:"command_key,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

func (c *checker) quarantine(path string, q *Quarantine) {
	if q != nil && (q.ExpiresSec < 1 || q.ExpiresSec > MaxQuarantineSec) {
		c.fail(path+".expires_sec", "%d is not between 1 and %d", q.ExpiresSec, MaxQuarantineSec)
	}
}

func (c *checker) quarantineResolved(p *QuarantineResolved) {
	c.ulid("payload.command_id", p.CommandID)
	c.assetKey("payload.asset", p.Asset)
	c.partition("payload.partition", p.Partition)
	c.ulid("payload.materialization_id", p.MaterializationID)
	c.oneOf("payload.decision", p.Decision, DecisionApprove, DecisionReject)
	c.text("payload.reason", p.Reason, MaxMessage)
	c.commandKey(p.CommandKey, p.Fingerprint)
}
