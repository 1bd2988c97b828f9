"""How each engine lays out a project, runs it, and reads a result."""

import json
import os
import pathlib
import subprocess
import time

# A change that alters a model's rows and keeps its columns.
CHANGE = "\n-- changed\nLIMIT 1000000"


class Engine:
    """A project of one engine in a folder of its own."""

    name = "?"
    note = ""

    def __init__(self, folder, models, files, tools):
        self.folder, self.models, self.files, self.tools = pathlib.Path(folder), models, files, tools
        self.changed = None
        self.env = {**os.environ, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": ""}

    def file(self, name):
        return str(self.files[name])

    def statement(self, model, reference):
        text = model.render(reference, self.file)
        if model.name == self.changed:
            text = f"SELECT * FROM ({text}) AS unchanged{CHANGE}"
        return text

    def write(self, path, text):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def execute(self, *argv):
        """Runs a command and returns its output and its wall time in seconds."""
        began = time.perf_counter()
        done = subprocess.run([str(a) for a in argv], cwd=self.folder, env=self.env, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1800)
        took = time.perf_counter() - began
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: {' '.join(map(str, argv))} exited with {done.returncode}:\n{done.stdout[-3000:]}")
        return done.stdout, took

    def setup(self):
        raise NotImplementedError

    def run(self):
        """Brings every model up to date. Returns the wall time and the number of executed models, or None if unknown."""
        raise NotImplementedError

    def change(self, name):
        """Changes the statement of one model."""
        self.changed = name
        self.setup()

    def rows(self, name):
        """Returns the number of rows of a model's table."""
        raise NotImplementedError


def double(name):
    return f"{name.split('.')[0]}.{name.split('.')[1]}"


def flat(name):
    return name.replace(".", "_")


class Servo(Engine):
    name = "Servo"

    def setup(self):
        self.write("servo.yaml", f"name: models\nworkers: {{concurrency: {os.cpu_count()}}}\n")
        (self.folder / "data").mkdir(exist_ok=True)
        for name, path in self.files.items():
            link = self.folder / "data" / f"{name}.parquet"
            if not link.exists():
                os.link(path, link)
        for model in self.models:
            self.write(f"assets/{model.layer}/{model.short}.sql", self.statement(model, double) + "\n")

    def file(self, name):
        return f"data/{name}.parquet"

    def run(self):
        _, took = self.execute(self.tools["servo"], "run", "--stale")
        return took, self.executed()

    def executed(self):
        out, _ = self.execute(self.tools["servo"], "query", "-o", "json",
                              "SELECT count(*) AS n FROM tasks WHERE kind = 'task'")
        total = json.loads(out)[0]["n"]
        before, self.before = getattr(self, "before", 0), total
        return total - before

    def rows(self, name):
        out, _ = self.execute(self.tools["servo"], "query", "-o", "json", f"SELECT count(*) AS n FROM {name}")
        return json.loads(out)[0]["n"]


class DuckDB(Engine):
    name = "DuckDB alone"
    note = "one process, one statement after the other, tables in one database file"

    def setup(self):
        layers = sorted({m.layer for m in self.models})
        lines = [f"CREATE SCHEMA IF NOT EXISTS {layer};" for layer in layers]
        lines += [f"CREATE OR REPLACE TABLE {m.name} AS {self.statement(m, double)};" for m in self.models]
        self.write("run.sql", "\n".join(lines))
        self.write("run.py", "import duckdb\nduckdb.connect('models.duckdb').execute(open('run.sql').read())\n")

    def run(self):
        _, took = self.execute(self.tools["duckdb"], "run.py")
        return took, len(self.models)

    def rows(self, name):
        code = f"import duckdb; print(duckdb.connect('models.duckdb').execute('SELECT count(*) FROM {name}').fetchone()[0])"
        return int(self.execute(self.tools["duckdb"], "-c", code)[0])


class DuckDBParquet(DuckDB):
    name = "DuckDB alone, Parquet"
    note = "one process; each table is written as a Parquet file with zstd and read from it"

    def setup(self):
        def read(name):
            return f"read_parquet('{flat(name)}.parquet')"
        self.write("run.sql", "\n".join(
            f"COPY ({self.statement(m, read)}) TO '{flat(m.name)}.parquet' (FORMAT parquet, COMPRESSION zstd);" for m in self.models))
        self.write("run.py", "import duckdb\nduckdb.connect().execute(open('run.sql').read())\n")

    def rows(self, name):
        code = f"import duckdb; print(duckdb.execute(\"SELECT count(*) FROM '{flat(name)}.parquet'\").fetchone()[0])"
        return int(self.execute(self.tools["duckdb"], "-c", code)[0])


class Dbt(Engine):
    name = "dbt-duckdb"

    def setup(self):
        self.write("dbt_project.yml", "name: models\nversion: '1.0'\nprofile: models\nmodel-paths: [models]\n"
                   "flags: {send_anonymous_usage_stats: false}\nmodels: {models: {+materialized: table}}\n")
        self.write("profiles.yml", f"models: {{target: dev, outputs: {{dev: {{type: duckdb, path: models.duckdb, threads: {os.cpu_count()}}}}}}}\n")
        for model in self.models:
            text = self.statement(model, lambda name: "{{ ref('" + flat(name) + "') }}")
            self.write(f"models/{model.layer}/{flat(model.name)}.sql", text + "\n")

    def run(self):
        out, took = self.execute(self.tools["dbt"], "run", "--profiles-dir", ".", "--no-use-colors", "--quiet")
        return took, len(json.loads((self.folder / "target/run_results.json").read_text())["results"])

    def rows(self, name):
        code = f"import duckdb; print(duckdb.connect('models.duckdb').execute('SELECT count(*) FROM {flat(name)}').fetchone()[0])"
        return int(self.execute(self.tools["duckdb"], "-c", code)[0])


class SQLMesh(Engine):
    name = "SQLMesh"

    def setup(self):
        self.env["SQLMESH__DISABLE_ANONYMIZED_ANALYTICS"] = "true"
        self.write("config.yaml", "model_defaults: {dialect: duckdb, start: '2024-01-01'}\ndefault_gateway: local\n"
                   f"gateways: {{local: {{connection: {{type: duckdb, database: models.duckdb, concurrent_tasks: {os.cpu_count()}}}}}}}\n"
                   "disable_anonymized_analytics: true\n")
        for model in self.models:
            self.write(f"models/{model.layer}/{model.short}.sql",
                       f"MODEL (name {model.name}, kind FULL);\n\n{self.statement(model, double)}\n")

    def run(self):
        out, took = self.execute(self.tools["sqlmesh"], "plan", "--auto-apply", "--no-prompts")
        return took, out.count("[1/1]")

    def rows(self, name):
        code = f"import duckdb; print(duckdb.connect('models.duckdb').execute('SELECT count(*) FROM {name}').fetchone()[0])"
        return int(self.execute(self.tools["duckdb"], "-c", code)[0])


class Dagster(Engine):
    name = "Dagster"
    note = "one process; every asset is a function that executes its statement"

    def setup(self):
        listed = [{"name": m.name, "reads": m.reads, "sql": self.statement(m, double)} for m in self.models]
        self.write("models.json", json.dumps(listed))
        self.write("definitions.py", (pathlib.Path(__file__).parent / "dagster_definitions.py").read_text())
        (self.folder / "home").mkdir(exist_ok=True)
        self.write("home/dagster.yaml", "telemetry: {enabled: false}\n")
        self.env["DAGSTER_HOME"] = str(self.folder / "home")

    def run(self):
        _, took = self.execute(self.tools["dagster"], "asset", "materialize", "--select", "*", "-f", "definitions.py")
        return took, len(self.models)

    def rows(self, name):
        code = f"import duckdb; print(duckdb.connect('models.duckdb').execute('SELECT count(*) FROM {name}').fetchone()[0])"
        return int(self.execute(self.tools["duckdb"], "-c", code)[0])


ENGINES = [Servo, DuckDB, DuckDBParquet, Dbt, SQLMesh, Dagster]
