package event

import "fmt"

// Kinds of deployments.
const (
	DeployRelease  = "deploy"   // a person or a pipeline deployed a release
	DeployRollback = "rollback" // an earlier release became current again
	DeployLocal    = "local"    // a run or `servo dev` deployed the project's folder
)

// Limits of a deployment.
const (
	MaxAccepted      = 1000 // assets with a list of accepted codes
	MaxAcceptedCodes = 1000 // codes that are accepted in place of one code
	MaxVars          = 256  // variables that a run overrides
	MaxVarValue      = 4096 // bytes
)

const (
	digitsOfRelease = 64 // a whole SHA-256
	digitsOfCode    = 16 // the first hexadecimal digits of a SHA-256
)

// ProjectDeployed is the command to make a release the current release of the domain.
type ProjectDeployed struct {
	// DeployID is a ULID greater than the id of the deployment that the writer saw.
	DeployID string `json:"deploy_id"`
	// Release is the hash of the release.
	Release string `json:"release"`
	// Expects is the release that the writer saw; "": no release was deployed. If another release is current, the
	// deployment is a conflict.
	Expects string `json:"expects,omitempty"`
	// Force deploys the release even if the release in Expects is not the current one.
	Force bool `json:"force,omitempty"`
	// Kind is "deploy", "rollback" or "local".
	Kind        string `json:"kind"`
	Environment string `json:"environment,omitempty"`
	Message     string `json:"message,omitempty"`
	// Git says which commit the release was compiled from; nil: unknown.
	Git *Git `json:"git,omitempty"`
	// Accept lists, for each asset, the earlier codes that count as its current code.
	Accept []AcceptedCode `json:"accept,omitempty"`
	// Changes counts the assets that differ from the previously deployed release.
	Changes Changes `json:"changes"`
	// Schedules is the hash of the release's schedules, from [HashSchedules]; "": the release has no schedules.
	Schedules string `json:"schedules,omitempty"`
	// Alerts are the rules of the release.
	Alerts []AlertRule `json:"alerts,omitempty"`
	// Watched are the assets of the release that have a deadline, a freshness limit or an SLA, sorted by asset.
	Watched []WatchedAsset `json:"watched,omitempty"`
}

// Git is the state of a Git repository.
type Git struct {
	Commit string `json:"commit,omitempty"`
	Branch string `json:"branch,omitempty"`
	// Dirty means that files differ from the commit.
	Dirty bool `json:"dirty,omitempty"`
}

// AcceptedCode lists codes of an asset that are accepted in place of Code. A partition that was made by one of
// these codes counts as made by Code.
type AcceptedCode struct {
	Asset string `json:"asset"`
	Code  string `json:"code"`
	// Accepts lists all codes that count as Code. It replaces an earlier list of the asset.
	Accepts []string `json:"accepts,omitempty"`
}

// Changes counts the assets of a release that differ from the previously deployed release.
type Changes struct {
	Added   int32 `json:"added,omitempty"`
	Removed int32 `json:"removed,omitempty"`
	Changed int32 `json:"changed,omitempty"`
}

func (c *checker) projectDeployed(p *ProjectDeployed) {
	c.ulid("payload.deploy_id", p.DeployID)
	c.hex("payload.release", p.Release, digitsOfRelease)
	if p.Expects != "" {
		c.hex("payload.expects", p.Expects, digitsOfRelease)
	}
	c.oneOf("payload.kind", p.Kind, DeployRelease, DeployRollback, DeployLocal)
	c.text("payload.environment", p.Environment, MaxName)
	c.text("payload.message", p.Message, MaxMessage)
	if p.Git != nil {
		c.text("payload.git.commit", p.Git.Commit, MaxName)
		c.text("payload.git.branch", p.Git.Branch, MaxName)
	}
	c.atMost("payload.accept (count)", int64(len(p.Accept)), MaxAccepted)
	for i, a := range p.Accept {
		path := fmt.Sprintf("payload.accept[%d]", i)
		c.assetKey(path+".asset", a.Asset)
		c.hex(path+".code", a.Code, digitsOfCode)
		c.atMost(path+".accepts (count)", int64(len(a.Accepts)), MaxAcceptedCodes)
		for j, code := range a.Accepts {
			c.hex(fmt.Sprintf("%s.accepts[%d]", path, j), code, digitsOfCode)
		}
	}
	c.count("payload.changes.added", int64(p.Changes.Added))
	c.count("payload.changes.removed", int64(p.Changes.Removed))
	c.count("payload.changes.changed", int64(p.Changes.Changed))
	c.optionalHex("payload.schedules", p.Schedules, digitsOfCode)
	c.alertRules("payload.alerts", p.Alerts)
	c.watched("payload.watched", p.Watched)
}

func (c *checker) optionalHex(path, s string, digits int) {
	if s != "" {
		c.hex(path, s, digits)
	}
}

// hex validates a hash in lower-case hexadecimal digits.
func (c *checker) hex(path, s string, digits int) {
	if len(s) != digits {
		c.fail(path, "%.100q has %d characters: expected %d hexadecimal digits", s, len(s), digits)
	}
	for _, b := range []byte(s) {
		if (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			c.fail(path, "%.100q contains %q: expected the digits 0-9 and a-f", s, b)
			return
		}
	}
}

// vars validates the variables that a run overrides.
func (c *checker) vars(vars map[string]string) {
	c.atMost("payload.vars (count)", int64(len(vars)), MaxVars)
	for key, value := range vars {
		c.name("payload.vars (a key)", key)
		c.text(fmt.Sprintf("payload.vars[%.100q]", key), value, MaxVarValue)
	}
}
