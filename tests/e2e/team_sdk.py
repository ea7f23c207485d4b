"""What a person of tests/e2e/team.py does with ClearML's SDK, unmodified: `team_sdk.py ACT [WORD…]`, with the person's keys in the environment.
The answer is the last line of stdout, as JSON."""

import json
import sys

from clearml import Task


def look(task_id):
    """A task by its id, and what it printed."""
    try:
        task = Task.get_task(task_id=task_id)
    except ValueError as why:
        return {"absent": str(why)}
    try:
        return {"name": task.name, "log": "".join(task.get_reported_console_output(number_of_reports=100))}
    except Exception as why:  # noqa: BLE001 - the SDK has no type of its own for a refusal
        return {"name": task.name, "refused": str(why)}


def search(*projects):
    """The tasks of projects."""
    return {"ids": sorted(Task.query_tasks(project_name=list(projects)))}


def train(project, name, word):
    """An experiment on this person's laptop, with a line of output, a value and an artifact."""
    task = Task.init(project_name=project, task_name=name, reuse_last_task_id=False, auto_resource_monitoring=False)
    print(word, flush=True)
    task.get_logger().report_scalar("loss", "train", value=0.25, iteration=1)
    task.upload_artifact("word", {"word": word}, wait_on_upload=True)
    task.close()
    again = Task.get_task(task_id=task.id)
    return {"id": task.id, "status": again.get_status(), "loss": again.get_last_scalar_metrics()["loss"]["train"]["last"], "word": again.artifacts["word"].get()["word"]}


if __name__ == "__main__":
    print("\n" + json.dumps({"look": look, "search": search, "train": train}[sys.argv[1]](*sys.argv[2:])))
