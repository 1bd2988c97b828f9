package cli

import (
	"fmt"
	"os"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/secret"
)

// secretSources returns where tasks get their secrets from. Every process that may own a state folder needs these
// sources, because the owner executes tasks.
func (a *app) secretSources() secret.Sources {
	dir := a.secrets
	if dir != "" {
		dir = a.abs(dir)
	}
	s := secret.Sources{plan.SecretFile: secret.Files(dir), plan.SecretEnv: secret.Variables(a.lookupEnv)}
	if a.CloudSecrets != nil {
		s[plan.SecretGCP] = a.CloudSecrets
	}
	return s
}

// checkSecrets returns an error if the folder of secrets does not exist.
func (a *app) checkSecrets() error {
	if a.secrets == "" {
		return nil
	}
	if info, err := os.Stat(a.abs(a.secrets)); err != nil || !info.IsDir() {
		return fmt.Errorf("no folder of secrets at %s: name another one with --secrets", a.abs(a.secrets))
	}
	return nil
}
