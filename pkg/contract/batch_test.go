package contract_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	monday  = `{"date":"2025-01-06"}`
	tuesday = `{"date":"2025-01-07"}`
)

// batchMarker returns the marker of a batch of two days. The second day has no files.
func batchMarker() contract.CommitMarker {
	d, asset := ids.Domain{Tenant: "t", Workspace: "w"}, ids.AssetKey{Namespace: "a", Name: "b"}
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	return contract.CommitMarker{
		MaterializationID: id, AttemptID: id, Nonce: "n", PartitionKey: monday, URI: contract.BatchPrefix(d, asset, monday, id, id, "n"),
		Files: []contract.CommitMarkerFile{{Name: "date-2025-01-06/data.parquet", Size: 7, Rows: 2}}, RowCount: 2, ByteSize: 7, SchemaHash: "h",
		Cells: []contract.CommitMarkerCell{{PartitionKey: monday, Files: 1, RowCount: 2, ByteSize: 7}, {PartitionKey: tuesday}},
	}
}

func TestMarkerOfBatchDescribesEachPartition(t *testing.T) {
	t.Parallel()
	m := batchMarker()
	uri := contract.CellURI(m.URI, monday)
	one := m.For(uri)
	require.Equal(t, []contract.CommitMarkerFile{{Name: "data.parquet", Size: 7, Rows: 2}}, one.Files)
	require.Equal(t, uri, one.URI)
	require.Equal(t, one, m.Cell(monday))
	require.Equal(t, "date-2025-01-06/data.parquet", m.Files[0].Name, "the marker is unchanged")
	other := m.Cell(tuesday)
	require.Empty(t, other.Files)
	require.Zero(t, other.RowCount)
	require.Equal(t, tuesday, other.PartitionKey)
	require.Nil(t, m.Cell(`{"date":"2025-01-08"}`))
	require.Nil(t, m.For(m.URI+"date-2025-01-08/"))
	require.Nil(t, m.For("assets/other.cells/date-2025-01-06/"))
	require.Equal(t, &m, m.For(m.URI))
	require.Equal(t, []event.OutputCell{{RowCount: 2, ByteSize: 7}, {}}, m.Output().Cells)
	require.Equal(t, contract.CommitMarkerKeyOf(m.URI), contract.CommitMarkerKeyOf(uri), "the marker is that of the whole batch")
}

func TestDecodeChecksPartitionsOfBatch(t *testing.T) {
	t.Parallel()
	decode := func(change func(m *contract.CommitMarker)) error {
		m := batchMarker()
		change(&m)
		data, err := json.Marshal(m)
		require.NoError(t, err)
		_, err = contract.DecodeCommitMarker(data)
		return err
	}
	require.NoError(t, decode(func(*contract.CommitMarker) {}))
	for name, change := range map[string]func(m *contract.CommitMarker){
		"a file of no partition":   func(m *contract.CommitMarker) { m.Cells[0].Files = 0 },
		"too many files":           func(m *contract.CommitMarker) { m.Cells[1].Files = 1 },
		"a file in another folder": func(m *contract.CommitMarker) { m.Cells[0].Files, m.Cells[1].Files = 0, 1 },
		"no partitions":            func(m *contract.CommitMarker) { m.Cells = nil },
		"an invalid partition":     func(m *contract.CommitMarker) { m.Cells[1].PartitionKey = "x" },
		"negative rows":            func(m *contract.CommitMarker) { m.Cells[1].RowCount = -1 },
		"another directory":        func(m *contract.CommitMarker) { m.URI = strings.Replace(m.URI, ".cells/", "/", 1) },
	} {
		require.Error(t, decode(change), name)
	}
}
