package compactor_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
)

// FetchPlans turns the document of a plan into valid tasks, or into the reason why the plan is invalid. It never
// returns an error, because an error would make the compactor wait and retry.
func FuzzFetchPlansReturnsTasksOrAReason(f *testing.F) {
	type doc struct {
		Tasks []event.TaskDef `json:"tasks"`
	}
	good, err := json.Marshal(doc{[]event.TaskDef{foldtest.Task("a"), foldtest.Task("b", "a")}})
	require.NoError(f, err)
	for _, seed := range []string{
		string(good), string(good[:len(good)/2]), string(good) + "x", `{"tasks":[{"task_key":"a","depends_on":["a"]}]}`,
		`{"tasks":[{"task_key":"a"},{"task_key":"a"}]}`, `{"tasks":[{"task_key":""}]}`, `{"tasks":[null]}`, `{"tasks":{}}`,
		`{"tasks":[{"task_key":"a","max_attempts":-1}]}`, "{}", "null", "[]", "",
	} {
		f.Add([]byte(seed))
	}
	ref := "plans/" + foldtest.Domain.Path() + "/x.json"
	f.Fuzz(func(t *testing.T, data []byte) {
		fetch := func(data []byte) fold.Plan {
			blobs := memblob.New(memblob.Options{})
			_, err := blobs.Create(t.Context(), ref, data)
			require.NoError(t, err)
			groups := []fold.Group{{Events: []*event.Envelope{{Payload: &event.PlanCreated{PlanRef: ref}}}}}
			require.NoError(t, compactor.FetchPlans(t.Context(), blobs, foldtest.Domain, groups))
			return groups[0].Plans[ref]
		}
		got := fetch(data)
		if got.Err != "" {
			require.Contains(t, got.Err, ref)
			require.Empty(t, got.Tasks)
			return
		}
		require.NoError(t, event.ValidateTasks(got.Tasks))
		stored, err := json.Marshal(doc{got.Tasks})
		require.NoError(t, err)
		again, err := json.Marshal(doc{fetch(stored).Tasks})
		require.NoError(t, err)
		require.Equal(t, string(stored), string(again))
	})
}
