package event_test

import (
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// A group is folded as a whole or not at all. Its events have the same group id and the same size.
func ExampleEncode() {
	acme := ids.Domain{Tenant: "acme", Workspace: "prod"}
	group := []*event.Envelope{
		{ID: "01JHK4W3000000000000000001", Payload: &event.LimitSet{
			CommandID: "c-1", Scope: event.ScopePool, Name: "warehouse", Slots: 4,
		}},
		{ID: "01JHK4W3000000000000000002", Payload: &event.LimitSet{
			CommandID: "c-2", Scope: event.ScopePool, Name: "api", Slots: 2,
		}},
	}
	var entry []byte
	for _, e := range group {
		e.Domain, e.Source, e.Actor = acme, acme.Source(), "user:jane"
		e.Time = event.At(time.Date(2025, 1, 15, 10, 30, 0, 0, time.UTC))
		e.Group, e.GroupSize = group[0].ID, len(group)
		if err := event.Validate(e); err != nil {
			fmt.Println(err)
			return
		}
		var err error
		if entry, err = event.Encode(entry, e); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := event.ValidateGroup(group, len(entry)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(entry))
	// Output:
	// {"event_id":"01JHK4W3000000000000000001","event_type":"LimitSet","event_version":1,"timestamp":"2025-01-15T10:30:00.000000Z","source":"servo/acme/prod","tenant_id":"acme","workspace_id":"prod","idempotency_key":"limit:c-1","actor":"user:jane","group":"01JHK4W3000000000000000001","group_size":2,"payload":{"command_id":"c-1","scope":"pool","name":"warehouse","slots":4}}
	// {"event_id":"01JHK4W3000000000000000002","event_type":"LimitSet","event_version":1,"timestamp":"2025-01-15T10:30:00.000000Z","source":"servo/acme/prod","tenant_id":"acme","workspace_id":"prod","idempotency_key":"limit:c-2","actor":"user:jane","group":"01JHK4W3000000000000000001","group_size":2,"payload":{"command_id":"c-2","scope":"pool","name":"api","slots":2}}
}

// An entry of the ledger contains one or more groups.
func ExampleDecodeEntry() {
	entry := []byte(`{"event_id":"01JHK4W3000000000000000001","event_type":"LimitSet","event_version":1,` +
		`"timestamp":"2025-01-15T10:30:00.000000Z","source":"servo/acme/prod","tenant_id":"acme","workspace_id":"prod",` +
		`"idempotency_key":"limit:c-1","actor":"user:jane",` +
		`"payload":{"command_id":"c-1","scope":"pool","name":"warehouse","slots":4}}` + "\n")
	for _, group := range event.Groups(event.DecodeEntry(entry)) {
		if group.Err != nil {
			fmt.Println(group.Err)
			continue
		}
		for _, e := range group.Events {
			switch p := e.Payload.(type) {
			case *event.LimitSet:
				fmt.Printf("%s: %s gave the pool %s %d slots\n", e.Time, e.Actor, p.Name, p.Slots)
			default: // there are many kinds of events, and later versions add more
				fmt.Println(p.Type())
			}
		}
	}
	// Output:
	// 2025-01-15T10:30:00.000000Z: user:jane gave the pool warehouse 4 slots
}

// A group that cannot be read does not affect the other groups of its entry. The reason says what
// to do: only a newer version of this package can read an unsupported event.
func ExampleDecodeEntry_rejected() {
	entry := []byte(`{"event_id":"01JHK4W3000000000000000001","event_type":"TaskTeleported","event_version":1}
not an event
`)
	for _, group := range event.Groups(event.DecodeEntry(entry)) {
		switch {
		case group.Err == nil:
			fmt.Println("read", group.ID)
		case group.Err.Reason == event.ReasonUnsupported:
			fmt.Printf("%s waits for an upgrade: %s\n", group.ID, group.Err.Detail)
		default:
			fmt.Printf("%s is skipped: %s: %s\n", group.ID, group.Err.Reason, group.Err.Detail)
		}
	}
	// Output:
	// 01JHK4W3000000000000000001 waits for an upgrade: line 1: event_type: unknown type "TaskTeleported": upgrade servo
	// line-2 is skipped: MALFORMED: line 2: the line is not a JSON object: invalid character 'o' in literal null (expecting 'u')
}
