// Package tabletest creates rows of tables for tests.
package tabletest

import (
	"fmt"
	"reflect"
	"strings"

	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// DrawRow returns a random row. Values come from small sets, so that keys repeat.
func DrawRow[R any](t *rapid.T, label string) *R {
	row := new(R)
	fill(t, reflect.ValueOf(row).Elem(), label)
	return row
}

func fill(t *rapid.T, v reflect.Value, label string) {
	for i := range v.NumField() {
		field := v.Field(i)
		name := label + "." + v.Type().Field(i).Name
		switch field.Kind() {
		case reflect.Struct:
			fill(t, field, name)
		case reflect.String:
			field.SetString(rapid.SampledFrom([]string{"", "a", "b", "é", "x\x00y", "01J8ZC4W9QN3"}).Draw(t, name))
		case reflect.Int32:
			field.SetInt(int64(rapid.SampledFrom([]int32{0, 1, -1, 1 << 30}).Draw(t, name)))
		case reflect.Int64:
			field.SetInt(rapid.SampledFrom([]int64{0, 1, 1_700_000_000_123_456, -5, 253_402_300_800_000_001}).Draw(t, name))
		case reflect.Bool:
			field.SetBool(rapid.Bool().Draw(t, name))
		default:
			panic(name)
		}
	}
}

// Row returns a list with one row of a table. All columns of the row have their zero values.
func Row(d *state.Declaration) any {
	var text strings.Builder
	text.WriteString(`[{"row_seq":0`)
	for _, key := range d.Keys() {
		zero := `""`
		if d.Column(key).Type != table.Varchar {
			zero = "0"
		}
		fmt.Fprintf(&text, ",%q:%s", key, zero)
	}
	list, err := d.Decode(table.JSON{}, []byte(text.String()+"}]"))
	if err != nil {
		panic(err)
	}
	return list
}

// DrawList returns a list of random rows of a table, in any order. No two rows have the same key.
func DrawList(t *rapid.T, d *state.Declaration) any {
	list := reflect.Zero(reflect.TypeOf(Row(d)))
	for range rapid.IntRange(0, 12).Draw(t, "rows") {
		row := reflect.ValueOf(Row(d)).Index(0)
		fill(t, row.Elem(), "row")
		longer := reflect.Append(list, row)
		if _, err := d.Encode(table.JSON{}, longer.Interface()); err == nil {
			list = longer
		}
	}
	return list.Interface()
}

// Unique returns the first row of each key.
func Unique[R comparable](t *table.Table[R], rows []*R) []*R {
	seen := map[string]bool{}
	var kept []*R
	for _, row := range rows {
		if key := fmt.Sprintf("%q", t.Key(row)); !seen[key] {
			seen[key] = true
			kept = append(kept, row)
		}
	}
	return kept
}

// SampleTasks returns n realistic tasks of runs with a hundred tasks each.
func SampleTasks(n int) []*state.Task {
	rows := make([]*state.Task, n)
	for i := range rows {
		at := event.Time(1_760_000_000_000_000 + int64(i)*137_000)
		run := fmt.Sprintf("01J8ZC4W9QN3V6T2K7%08d", i/100)
		rows[i] = &state.Task{
			RunID: run, TaskKey: fmt.Sprintf("raw/orders_%03d[date=2025-01-15]", i%100), TaskID: fmt.Sprintf("t%07d", i),
			Kind: event.KindTask, AssetKey: fmt.Sprintf("raw/orders_%03d", i%100), PartitionKey: `{"date":"2025-01-15"}`,
			State:       []state.TaskState{state.TaskSucceeded, state.TaskRunning, state.TaskBlocked, state.TaskFailed}[i%4],
			TriggerRule: event.RuleAllSuccess, WorkerQueue: "default", Attempt: 1, AttemptID: fmt.Sprintf("01J8ZC4W9QZZV6T2K7%08d", i),
			DepsTotal: int32(i % 7), DepsSatisfied: int32(i % 7), DepsResolved: int32(i % 7),
			MaxAttempts: 3, RetryInitialDelayMS: 10_000, RetryMaxDelayMS: 600_000, RetryMultiplierPermille: 2000,
			TimeoutSec: 3600, HeartbeatTimeoutSec: 60, WorkerID: fmt.Sprintf("worker-%d", i%5),
			CreatedAt: at, ReadyAt: at + 5, AdmittedAt: at + 9, StartedAt: at + 1000,
			RowCount: int64(i) * 31, ByteSize: int64(i) * 4096,
			Meta: state.Meta{Tenant: "acme", Workspace: "prod", Version: fmt.Sprintf("01J8ZC4W9QYYV6T2K7%08d", i), Seq: int64(i) + 1},
		}
	}
	return rows
}
