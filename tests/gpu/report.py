"""Results as two files with one name: JSON for programs, Markdown for people."""

import json
import re


def write(folder, record):
    """Writes `<date>-<gpu>-driver<version>.json` and `.md`; returns the path of the latter."""
    gpu = re.sub(r"[^a-z0-9]+", "-", record["model"].lower()).strip("-")
    simulated = "-simulated" if record["simulated"] else ""
    path = folder / f"{record['date'][:10]}-{gpu}-driver{record['driver']}{simulated}"
    folder.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.json").write_text(json.dumps(record, indent=2) + "\n")
    path.with_name(f"{path.name}.md").write_text(markdown(record))
    return f"{path}.md"


def markdown(record):
    # Readers look for the checks that failed.
    order = ["failed", "passed", "skipped"]
    rows = "".join(row(result) for result in sorted(record["results"], key=lambda result: order.index(result["outcome"])))
    rows += "".join(f"| {name.replace('_', ' ')} | not run | | |\n" for name in record["not_run"])
    what = "a simulated GPU: this says nothing about a real one" if record["simulated"] else "a real GPU"
    return (
        f"# {record['model']}, driver {record['driver']}, {record['date'][:10]}\n\n"
        f"{record['cantle'].splitlines()[0]} on {what}, {record['memory_bytes'] >> 20} MiB; `make gpu-test`.\n\n"
        f"| check | outcome | seconds | figures |\n|---|---|---|---|\n{rows}"
    )


def row(result):
    figures = {name: value for name, value in result.items() if name not in ("check", "outcome", "seconds")}
    text = "; ".join(f"{name} {json.dumps(value)}" for name, value in figures.items())
    # As code: names and numbers are no prose.
    text = text.replace("|", "\\|").replace("`", "'")
    text = f"`{text}`" if text else ""
    return f"| {result['check'].replace('_', ' ')} | {result['outcome']} | {result['seconds']} | {text} |\n"
