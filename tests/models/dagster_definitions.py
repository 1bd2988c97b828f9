"""Dagster's side of the benchmark: one asset for each model of models.json."""

import json
import pathlib

import dagster
import duckdb

FOLDER = pathlib.Path(__file__).parent
DATABASE = FOLDER / "models.duckdb"


def asset_of(model):
    @dagster.asset(
        key=dagster.AssetKey(model["name"].split(".")),
        deps=[dagster.AssetKey(name.split(".")) for name in model["reads"]],
    )
    def materialize():
        with duckdb.connect(str(DATABASE)) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {model['name'].split('.')[0]}")
            connection.execute(f"CREATE OR REPLACE TABLE {model['name']} AS {model['sql']}")

    return materialize


# Only one process at a time can write a DuckDB database.
defs = dagster.Definitions(
    assets=[asset_of(m) for m in json.loads((FOLDER / "models.json").read_text())],
    executor=dagster.in_process_executor,
)
