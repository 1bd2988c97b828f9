package contract_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// A dispatcher seals an envelope, and a worker opens it.
func ExampleOpen() {
	acme := ids.Domain{Tenant: "acme", Workspace: "main"}
	const runID, taskKey = "01KAJ2T0000000000000000000", "raw/events"
	ring := contract.Keyring{Current: "k1", Secrets: map[string][]byte{"k1": []byte("a secret of at least 32 bytes....")}}
	now := event.At(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))

	body, err := contract.Seal(&contract.Envelope{
		ContractVersion: contract.Version, Tenant: acme.Tenant, Workspace: acme.Workspace,
		RunID: runID, TaskKey: taskKey, TaskID: ids.TaskID(acme, runID, taskKey),
		Attempt: 1, AttemptID: ids.AttemptID(acme, runID, taskKey, 1), MaxAttempts: 3,
		MaterializationID: ids.MaterializationID(acme, runID, taskKey),
		PlanRef:           "plans/" + acme.Path() + "/x.json", AssetKey: "raw/events", HeartbeatTimeoutSec: 300,
		Callbacks: contract.Callbacks{Started: "https://servo.example.com/started"},
	}, ring, now.Add(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}

	env, err := contract.Open(body, ring, now)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(env.AssetKey, "attempt", env.Attempt, "of", env.MaxAttempts)

	_, err = contract.Open(body, ring, now.Add(time.Hour))
	fmt.Println(errors.Is(err, contract.ErrExpired), err)
	changed := bytes.Replace(body, []byte("x.json"), []byte("y.json"), 1)
	_, err = contract.Open(changed, ring, now)
	fmt.Println(errors.Is(err, contract.ErrForged), err)
	// Output:
	// raw/events attempt 1 of 3
	// true expired signature: valid until 2026-11-21T13:00:00.000000Z
	// true invalid signature
}

// A dispatcher signs the URL of a callback, and verifies the request that arrives there.
func ExampleVerifyCallback() {
	ring := contract.Keyring{Current: "k1", Secrets: map[string][]byte{"k1": []byte("a secret of at least 32 bytes....")}}
	now := event.At(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	named := contract.Callback{ // a server reads these fields from the path of the URL
		Domain: ids.Domain{Tenant: "acme", Workspace: "main"}, RunID: "01KAJ2T0000000000000000000", TaskKey: "raw/events",
		Verb: contract.VerbFinished,
	}
	signed := named
	signed.Attempt, signed.AttemptID = 2, ids.AttemptID(named.Domain, named.RunID, named.TaskKey, 2)
	signed.Expires, signed.Revision = now.Add(time.Hour), 7

	callbackURL, authorization := contract.SignCallback("https://servo.example.com", signed, ring)
	u, err := url.Parse(callbackURL)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(u.EscapedPath())

	verified, err := contract.VerifyCallback(named, u.Query(), authorization, ring, now)
	fmt.Println(verified.Verb, "of attempt", verified.Attempt, err)
	named.Verb = contract.VerbStarted
	_, err = contract.VerifyCallback(named, u.Query(), authorization, ring, now)
	fmt.Println(err)
	// Output:
	// /v1/tenants/acme/workspaces/main/runs/01KAJ2T0000000000000000000/tasks/raw%2Fevents/callbacks/finished
	// finished of attempt 2 <nil>
	// invalid signature
}

// The commit marker of an output names its files.
func ExampleDecodeCommitMarker() {
	marker, err := contract.DecodeCommitMarker([]byte(`{
		"materialization_id": "01KAJ2T000J430S4CMQ4SASQMW", "run_id": "01KAJ2T0000000000000000000",
		"task_key": "raw/events", "asset_key": "raw/events", "attempt": 1, "attempt_id": "01KAJ2T000MMS0SFW7GN23F6VN",
		"nonce": "01KAJ2T0J4PV", "uri": "assets/acme/main/raw/events/_/01KAJ2T000J430S4CMQ4SASQMW/01KAJ2T000MMS0SFW7GN23F6VN-01KAJ2T0J4PV/",
		"files": [{"name": "data.parquet", "size": 641, "crc32c": 305419896, "rows": 2}],
		"row_count": 2, "byte_size": 641, "started_at": "2026-11-21T12:00:00Z", "committed_at": "2026-11-21T12:00:05Z"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, file := range marker.Files {
		fmt.Printf("%s: %d rows, %d bytes, CRC-32C %08x\n", file.Name, file.Rows, file.Size, file.CRC32C)
	}
	fmt.Println("computed in", marker.CommittedAt.Sub(marker.StartedAt))
	// Output:
	// data.parquet: 2 rows, 641 bytes, CRC-32C 12345678
	// computed in 5s
}
