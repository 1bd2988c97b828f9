package duckparse_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/project"
)

// loadFiles loads a project with the given files.
func loadFiles(t *testing.T, files map[string]string) error {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	p := open(t)
	_, err := project.Load(t.Context(), root, project.Options{ParseSQL: p.Parse, CheckBatches: p.Mixings})
	return err
}

// TestColumnsWithOtherValuesThanThePartition: an input may have a column called date whose values differ from the date
// of the partition. In this case, if a query groups by this column, it is rejected for batches.
func TestColumnsWithOtherValuesThanThePartition(t *testing.T) {
	const own = "raw/a may have a column date of its own"
	for upstream, want := range map[string]string{
		"SELECT *, getvariable('date') AS date FROM 'data/x.csv'":                                                                  own, // the second column is stored as date_1
		"SELECT *, 1 AS one, getvariable('date') AS date FROM raw.once":                                                            own,
		"SELECT * FROM 'data/x.csv', (SELECT getvariable('date') AS date)":                                                         own,
		"SELECT COLUMNS(*)::VARCHAR, getvariable('date') AS date FROM 'data/x.csv'":                                                own,
		"SELECT #1, getvariable('date') AS date FROM 'data/x.csv'":                                                                 own,
		"SELECT unnest({'date': x.d, 'v': x.v}) FROM 'data/x.csv' x":                                                               own, // returns the fields as columns
		"SELECT unnest(x.s) AS t FROM 'data/x.csv' x":                                                                              own,
		"SELECT x.v, s.* FROM 'data/x.csv' x":                                                                                      own,
		"SELECT s.date AS date, v FROM 'data/x.parquet' WHERE date = getvariable('date')":                                          own, // a field of a struct
		"SELECT x.s.date AS date, v FROM 'data/x.parquet' x, 'data/s.csv' s WHERE s.date = getvariable('date')":                    own,
		"SELECT * FROM 'data/x.parquet' WHERE s.date = getvariable('date')":                                                        own,
		"SELECT strptime(d, '%Y-%m-%d')::DATE AS date FROM 'data/x.csv' WHERE strptime(d, '%Y-%M-%d')::DATE = getvariable('date')": own,
		"SELECT a.date FROM 'data/x.csv' a, 'data/y.csv' b WHERE b.date = getvariable('date')":                                     own,

		"SELECT getvariable('date') AS date, * FROM 'data/x.csv'":                                                                  "",
		"SELECT * REPLACE (getvariable('date') AS date) FROM 'data/x.csv'":                                                         "",
		"SELECT * EXCLUDE (date), getvariable('date') AS date FROM 'data/x.csv'":                                                   "",
		"SELECT (SELECT getvariable('date')) AS date, v FROM 'data/x.csv'":                                                         "",
		"SELECT unnest([1, 2]) AS v":                                                                                               "",
		"SELECT x.date, v FROM 'data/x.parquet' x WHERE date = getvariable('date')":                                                "",
		"SELECT date, v FROM 'data/x.parquet' x JOIN 'data/y.csv' y USING (id) WHERE X.Date = getvariable('date')":                 "",
		"SELECT * FROM 'data/x.parquet' x WHERE x.date = getvariable('date')":                                                      "",
		"SELECT strptime(D, '%Y-%m-%d')::DATE AS date FROM 'data/x.csv' WHERE STRPTIME(d, '%Y-%m-%d')::DATE = getvariable('date')": "",
	} {
		err := loadFiles(t, map[string]string{
			"servo.yaml":          "",
			"assets/raw/a.sql":    daily + upstream,
			"assets/raw/once.sql": "SELECT * FROM 'data/y.csv'",
			"assets/q/x.sql":      inDays + "SELECT date, count(*) AS n FROM raw.a WHERE date IN " + keys + " GROUP BY date",
		})
		if want == "" {
			assert.NoError(t, err, upstream)
		} else {
			assert.ErrorContains(t, err, want, upstream)
		}
	}
}

// TestBatchesWhoseFirstColumnCounts: if a result has two columns called date, the first one counts as the partition
// of a row. It may come from a * or from a struct.
func TestBatchesWhoseFirstColumnCounts(t *testing.T) {
	const first = "another column may also have this name, and the first column with the name counts"
	for query, want := range map[string]string{
		"SELECT *, day AS date FROM 'x.csv' WHERE day IN " + keys:                               first,
		"SELECT x.*, m.* FROM 'x.csv' x JOIN raw.made m USING (id)":                             "the column date of the result may differ",
		"SELECT x.*, m.date FROM 'x.csv' x JOIN raw.made m USING (id)":                          first,
		"SELECT COLUMNS('x|y')::VARCHAR, day AS date FROM 'x.csv' WHERE day IN " + keys:         first,
		"SELECT unnest(s), day AS date FROM 'x.csv' WHERE day IN " + keys:                       first,
		"SELECT #1, date FROM raw.made":                                                         first,
		"SELECT date::DATE, v FROM raw.made":                                                    "the column date of the result may differ", // named CAST(date AS DATE)
		"SELECT t.v, t.* FROM (SELECT *, day AS date FROM 'x.csv') t WHERE day IN " + keys:      "the column date of the result may differ",
		"SELECT * EXCLUDE (date), day AS date FROM 'x.csv' WHERE day IN " + keys:                "",
		"SELECT m.*, x.* FROM 'x.csv' x JOIN raw.made m USING (id)":                             "",
		"SELECT t.*, m.date FROM (SELECT id, v AS w FROM 'x.csv') t JOIN raw.made m USING (id)": "",
	} {
		if _, err := loadBatch(t, inDays, query); want == "" {
			assert.NoError(t, err, query)
		} else {
			assert.ErrorContains(t, err, want, query)
		}
	}
}

// TestConvertedColumnsAreNotThePartition: a converted partition, such as the date of an hour or a part of a name, can
// be the same for several partitions, so it does not identify a partition.
func TestConvertedColumnsAreNotThePartition(t *testing.T) {
	dimension := map[string]string{"hour": "hourly: {start: 2025-01-01, timezone: Europe/Paris}", "region": "region: {static: [europe-west-1, europe-west-2]}"}
	files := func(column, upstream, reader string) map[string]string {
		partitions := "partitions: {" + dimension[column] + "}\n"
		return map[string]string{
			"servo.yaml":       "",
			"assets/raw/a.sql": "/* servo\n" + partitions + "*/\nSELECT " + upstream,
			"assets/q/x.sql":   "/* servo\n" + partitions + "batch: 50\n*/\n" + reader,
		}
	}
	for upstream, column := range map[string]string{
		"getvariable('hour')::DATE AS hour":              "hour",
		"date_trunc('day', getvariable('hour')) AS hour": "hour",
		"left(getvariable('region'), 11) AS region":      "region",
		"getvariable('region') || '-x' AS region":        "region",
	} {
		err := loadFiles(t, files(column, upstream, "SELECT "+column+", count(*) AS n FROM raw.a GROUP BY 1"))
		assert.ErrorContains(t, err, "may have a column "+column+" of its own", upstream)
	}
	for upstream, column := range map[string]string{
		"getvariable('hour')::TIMESTAMP AS hour":                                      "hour",
		"h AS hour FROM 'x.csv' WHERE h = getvariable('hour')":                        "hour",
		"region::VARCHAR AS region FROM 'x.csv' WHERE region = getvariable('region')": "region",
	} {
		assert.NoError(t, loadFiles(t, files(column, upstream, "SELECT "+column+", count(*) AS n FROM raw.a GROUP BY 1")), upstream)
	}
	days := func(upstream string) map[string]string {
		all := maps.Clone(files("hour", upstream, ""))
		all["assets/q/x.sql"] = "/* servo\npartitions: {daily: {start: 2025-01-01, timezone: Europe/Paris}}\nbatch: 50\n*/\n" +
			"SELECT (hour AT TIME ZONE 'Europe/Paris')::DATE AS date, count(*) AS n FROM raw.a GROUP BY 1"
		return all
	}
	for upstream, want := range map[string]string{
		"h AS hour FROM 'x.csv' WHERE h = getvariable('hour')":              "the column hour of raw/a may have another type than TIMESTAMPTZ",
		"h::TIMESTAMPTZ AS hour FROM 'x.csv' WHERE h = getvariable('hour')": "",
		"getvariable('hour') AS hour":                                       "",
	} {
		if err := loadFiles(t, days(upstream)); want == "" {
			assert.NoError(t, err, upstream)
		} else {
			assert.ErrorContains(t, err, want, upstream)
		}
	}
}
