package embedded

import "github.com/servo-orchestration/servo/pkg/ledger"

// Appender returns the appender of the stack, with which tests append what no engine would.
func (s *Stack) Appender() *ledger.Appender { return s.appender }

// Workspace returns what the stack has opened.
func (s *Stack) Workspace() *Workspace { return s.workspace }

// KnowsPeers is knowsPeers.
const KnowsPeers = knowsPeers
