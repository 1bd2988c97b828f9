package event

// MaxForgotten is the maximum number of assets of one [AssetsForgotten].
const MaxForgotten = 1_000

// AssetsForgotten is a person's command to forget assets that have left the project: their outputs become
// invisible, and the collector may delete them.
type AssetsForgotten struct {
	// CommandID makes the command unique. The command hides the outputs that are visible when it is folded. In a
	// rebuild without the recorded order, it also hides the outputs of runs whose ids are less than CommandID.
	CommandID string   `json:"command_id"`
	Assets    []string `json:"assets"` // sorted
	// Release is the deployed release, which contains none of the assets. Empty: no release was deployed.
	Release string `json:"release,omitempty"`
	Reason  string `json:"reason"`
}

func (c *checker) assetsForgotten(p *AssetsForgotten) {
	c.ulid("payload.command_id", p.CommandID)
	if n := len(p.Assets); n == 0 || n > MaxForgotten {
		c.fail("payload.assets", "has %d items; must have 1 to %d", n, MaxForgotten)
	}
	for i, asset := range p.Assets {
		c.assetKey("payload.assets", asset)
		if i > 0 && asset <= p.Assets[i-1] {
			c.fail("payload.assets", "is not sorted, or has an asset twice")
		}
	}
	if p.Release != "" {
		c.hex("payload.release", p.Release, digitsOfRelease)
	}
	c.text("payload.reason", p.Reason, MaxMessage)
}
