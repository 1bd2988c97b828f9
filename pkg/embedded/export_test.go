package embedded

import "github.com/servo-orchestration/servo/pkg/ledger"

// Appender returns the appender of the stack. Tests use it to append events that no engine would append.
func (s *Stack) Appender() *ledger.Appender { return s.appender }

// Workspace returns the workspace that the stack has opened.
func (s *Stack) Workspace() *Workspace { return s.workspace }

// KnowsPeers is knowsPeers.
const KnowsPeers = knowsPeers
