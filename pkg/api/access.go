package api

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/servov1"
)

// WhoAmI implements the call.
func (s *server) WhoAmI(ctx context.Context, _ *servov1.WhoAmIRequest) (*servov1.WhoAmIResponse, error) {
	d := s.Engine.Domain()
	me := &servov1.WhoAmIResponse{
		Principal: s.user(ctx), Mode: "local", TenantId: d.Tenant, WorkspaceId: d.Workspace, Permissions: permissions(s.ReadOnly),
		Capabilities: s.capabilities(), Version: s.Version,
	}
	if s.ReadOnly {
		me.Mode = "read_only"
	}
	if p, err := s.Project(); err == nil { // without a valid project, the response has no project name
		me.Project = p.Name
	}
	return me, nil
}

// capabilities returns the optional features that this server has.
func (s *server) capabilities() []string {
	if s.Logs == nil {
		return []string{"watch"}
	}
	return []string{"watch", "log_tail"}
}
