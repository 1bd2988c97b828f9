"""Measures SQL projects in Servo and its peers, in turns, and writes a table.

    python3 bench.py --tools tools.json --out bench/models [--samples 3] [--rows 3000000] [--projects large,small]

tools.json maps the names of engines.py to executables. For each sample and engine the program
makes an empty folder and measures the wall time of whole processes: the first run, a second run
with nothing changed, and a run after one model has changed. An engine that fails is listed with
its reason.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import engines
import project


def make_inputs(python, name, rows, folder):
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for file, sql in project.inputs(name, rows).items():
        files[file] = folder / f"{file}.parquet"
        copy = f"COPY ({sql}) TO '{files[file]}' (FORMAT parquet, COMPRESSION zstd)"
        subprocess.run([python, "-c", "import duckdb, sys; duckdb.execute(sys.argv[1])", copy], check=True)
    return files


CHANGED = {"large": "mart.brand_daily", "small": "l7.m7"}


def measure(engine, name, all_models):
    """Returns the figures of one sample of one engine."""
    engine.setup()
    first, executed = engine.run()
    rows = {m.name: engine.rows(m.name) for m in all_models[-1:]}
    second, again = engine.run()
    engine.change(CHANGED[name])
    third, changed = engine.run()
    return {"first_s": first, "first_models": executed, "rows": rows, "unchanged_s": second, "unchanged_models": again,
            "changed_s": third, "changed_models": changed}


def sample(make, name, all_models, files, tools, results):
    with tempfile.TemporaryDirectory(prefix="models-") as folder:
        try:
            figures = measure(make(folder, all_models, files, tools), name, all_models)
        except Exception as error:  # a peer that fails is a row of the table
            results.setdefault("failed", str(error))
            print(f"{name}: {make.name}: {error}", file=sys.stderr)
            return
    results.setdefault("samples", []).append(figures)
    print(f"{name}: {make.name}: " + ", ".join(f"{k} {v:.2f}" for k, v in figures.items() if k.endswith("_s")), flush=True)


def column(samples, key, digits=2):
    values = [s[key] for s in samples if s[key] is not None]
    return f"{statistics.median(values):.{digits}f}" if values else "–"


def table(results, expected):
    lines = ["| engine | first run, s | × DuckDB alone | nothing changed, s | models executed | one model changed, s | models executed |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    base = results.get("DuckDB alone", {}).get("samples")
    for name, result in results.items():
        samples = result.get("samples")
        if not samples:
            lines.append(f"| {name} | not measured: {result['failed'].splitlines()[0][:120]} | | | | | |")
            continue
        first = statistics.median(s["first_s"] for s in samples)
        factor = f"{first / statistics.median(s['first_s'] for s in base):.2f}" if base else "–"
        lines.append(f"| {name} | {first:.2f} | {factor} | {column(samples, 'unchanged_s')} | {column(samples, 'unchanged_models', 0)} | "
                     f"{column(samples, 'changed_s')} | {column(samples, 'changed_models', 0)} of {expected} |")
    return "\n".join(lines)


def check_rows(results):
    """Fails unless all engines made tables with the same number of rows."""
    counts = {name: r["samples"][0]["rows"] for name, r in results.items() if r.get("samples")}
    if len({json.dumps(c) for c in counts.values()}) > 1:
        raise SystemExit(f"the engines disagree about the rows: {counts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--projects", default="large,small")
    parser.add_argument("--engines", default="", help="names, separated by commas; default: all")
    args = parser.parse_args()
    tools = json.loads(pathlib.Path(args.tools).read_text())
    wanted = [e for e in engines.ENGINES if not args.engines or e.name in args.engines.split(",")]
    report = {}
    with tempfile.TemporaryDirectory(prefix="models-inputs-") as folder:
        for name in args.projects.split(","):
            all_models = project.models(name)
            files = make_inputs(tools["duckdb"], name, args.rows, pathlib.Path(folder) / name)
            results = report[name] = {make.name: {} for make in wanted}
            for _ in range(args.samples):
                for make in wanted:
                    if shutil.which(tools.get(make.__name__.lower().removesuffix("parquet"), "")) is None:
                        results[make.name].setdefault("failed", "could not be installed")
                    else:
                        sample(make, name, all_models, files, tools, results[make.name])
            check_rows(results)
            expected = len(project.descendants(all_models, CHANGED[name]))
            print(f"\n{name}: {len(all_models)} models\n\n{table(results, expected)}\n")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
