"""Programs that run by themselves at the weekend: a search of hyperparameters, triggers and a schedule. Tasks run on an agent that pulls from
`default`; `weekend.py BASE` has the id of the task whose copies are run. Prints `WEEKEND DONE` at its end."""

import os
import sys
import tempfile
import threading
import time

from clearml import Dataset, OutputModel, Task
from clearml.automation import (
    DiscreteParameterRange,
    GridSearch,
    HyperParameterOptimizer,
    TaskScheduler,
    TriggerScheduler,
)

OFTEN_MIN = 0.02


def until(condition, what, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.2)


def search(base):
    """The best of three is found, and is the one that a user would have found by hand."""
    optimizer = HyperParameterOptimizer(
        base_task_id=base,
        hyper_parameters=[DiscreteParameterRange("General/x", values=[1, 3, 5])],
        objective_metric_title="loss",
        objective_metric_series="total",
        objective_metric_sign="min",
        optimizer_class=GridSearch,
        max_number_of_concurrent_tasks=2,
        execution_queue="default",
        total_max_jobs=3,
        pool_period_min=OFTEN_MIN,
    )
    optimizer.set_report_period(OFTEN_MIN)
    optimizer.start()
    assert optimizer.wait(timeout=5)
    [best] = optimizer.get_top_experiments(top_k=1)
    optimizer.stop()
    assert best.get_parameters()["General/x"] == "3", best.get_parameters()
    assert len(Task.query_tasks(project_name="weekend", task_filter={"parent": Task.current_task().id})) == 3


def model(name, folder):
    made = OutputModel(task=Task.current_task(), name=name, tags=["ready"])
    with open(os.path.join(folder, name), "w") as file:
        file.write(name)
    made.update_weights(file.name, auto_delete_file=False)
    return made.id


def dataset(folder):
    made = Dataset.create(dataset_project="weekend data", dataset_name="data", dataset_tags=["fresh"])
    made.add_files(folder)
    made.upload()
    assert made.finalize()
    return made.id


def triggers(base, folder):
    """Events from before the triggers were set up fire none of them."""
    model("old", folder)
    dataset(folder)
    fired = []
    trigger = TriggerScheduler(pooling_frequency_minutes=OFTEN_MIN)
    trigger.add_model_trigger(
        name="a model", schedule_function=fired.append, trigger_project="weekend", trigger_on_tags=["ready"]
    )
    trigger.add_dataset_trigger(
        name="a data set", schedule_function=fired.append, trigger_project="weekend data", trigger_on_tags=["fresh"]
    )
    trigger.add_task_trigger(
        name="a task",
        schedule_task_id=base,
        schedule_queue="later",
        trigger_project="weekend",
        trigger_on_tags=["again"],
        target_project="weekend/triggered",
    )
    threading.Thread(target=trigger.start, daemon=True).start()
    # A trigger counts from its first look: until then nothing would fire it, new or old.
    until(lambda: all(each.last_update for each in trigger.get_triggers()), "the first look of the triggers")
    time.sleep(5)
    assert fired == [], "what was there before fired"
    new = model("new", folder)
    until(lambda: fired, "the trigger on models")
    assert fired == [new]
    newer = dataset(folder)
    until(lambda: len(fired) > 1, "the trigger on data sets")
    assert fired == [new, newer]
    Task.get_task(task_id=base).add_tags(["again"])
    until(lambda: Task.query_tasks(project_name="weekend/triggered"), "the trigger on tasks")


def schedule(base):
    scheduler = TaskScheduler(sync_frequency_minutes=OFTEN_MIN)
    assert scheduler.add_task(
        name="nightly",
        schedule_task_id=base,
        queue="later",
        target_project="weekend/nightly",
        hour=3,
        minute=0,
        execute_immediately=True,
    )
    threading.Thread(target=scheduler.start, daemon=True).start()
    until(lambda: Task.query_tasks(project_name="weekend/nightly"), "the scheduled task")


def main(base):
    task = Task.init(project_name="weekend", task_name="controller", task_type=Task.TaskTypes.optimizer)
    search(base)
    with tempfile.TemporaryDirectory() as folder:
        triggers(base, folder)
    schedule(base)
    task.close()
    print("WEEKEND DONE", flush=True)
    # The schedulers' threads have no end.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
