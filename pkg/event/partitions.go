package event

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// MaxKeys is the maximum number of keys that one event adds to a key set. The same maximum applies
// to the keys that it removes.
const MaxKeys = 5000

// PartitionsChanged is the command to add keys to a key set, and to remove keys from it.
type PartitionsChanged struct {
	// CommandID makes the command unique.
	CommandID string `json:"command_id"`
	KeySet    string `json:"key_set"`
	// Add and Remove have no key in common.
	Add    []string `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
	// CommandKey and Fingerprint deduplicate the command, as in [AutomationCommand].
	CommandKey  string `json:"command_key,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

func (c *checker) partitionsChanged(p *PartitionsChanged) {
	c.name("payload.command_id", p.CommandID)
	c.keySet("payload.key_set", p.KeySet)
	c.commandKey(p.CommandKey, p.Fingerprint)
	c.keys("payload.add", p.Add, MaxKeys)
	c.keys("payload.remove", p.Remove, MaxKeys)
	if len(p.Add) == 0 || len(p.Remove) == 0 {
		return
	}
	added := make(map[string]bool, len(p.Add))
	for _, key := range p.Add {
		added[key] = true
	}
	for i, key := range p.Remove {
		if added[key] {
			c.fail(fmt.Sprintf("payload.remove[%d]", i), "%.100q is added and removed", key)
			return
		}
	}
}

// keySet validates the name of a key set.
func (c *checker) keySet(path, name string) {
	if !ids.ValidName(name) {
		c.fail(path, "%.100q is not the name of a key set: expected a-z, 0-9 and _, beginning with a letter", name)
	}
}

// keys validates keys of a key set.
func (c *checker) keys(path string, keys []string, most int64) {
	c.atMost(path+" (count)", int64(len(keys)), most)
	for i, key := range keys {
		if err := ids.CheckValue(key); err != nil {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "%v", err)
			return
		}
	}
}
