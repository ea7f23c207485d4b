"""The work of a ClearML user in a week, with the version of the SDK that runs this. Prints `WEEK DONE` at its end."""

import os
import tempfile

import numpy as np
from clearml import Dataset, InputModel, Model, OutputModel, PipelineDecorator, Task


def monday():
    """Trains, reports everything, and leaves artifacts and a model behind."""
    task = Task.init(project_name="week", task_name="train", output_uri=True, auto_resource_monitoring=False)
    task.connect({"rate": 0.1, "steps": 3})
    task.connect_configuration({"layers": [8, 4]}, name="net")
    task.add_tags(["monday"])
    logger = task.get_logger()
    for step in range(3):
        logger.report_scalar("loss", "train", 1 / (step + 1), step)
        logger.report_image("samples", "noise", step, image=np.zeros((4, 4, 3), dtype=np.uint8))
    logger.report_single_value("best", 0.3)
    logger.report_histogram("weights", "layer", values=np.arange(4), iteration=1)
    logger.report_confusion_matrix("confusion", "two", matrix=np.eye(2), iteration=1)
    logger.report_text("all is well")
    task.upload_artifact("settings", {"rate": 0.1}, wait_on_upload=True)
    model = OutputModel(task=task, name="net", framework="PyTorch")
    with open("weights.bin", "wb") as file:
        file.write(b"weights")
    model.update_weights("weights.bin", auto_delete_file=False)
    model.set_metadata("size", "7", "int")
    assert task.set_user_properties(owner="me")
    task.flush(wait_for_uploads=True)
    task.close()
    return task.id, model.id


def tuesday(trained, model):
    """Looks at what there is."""
    task = Task.get_task(task_id=trained)
    assert task.get_parameters()["General/rate"] == "0.1"
    assert task.artifacts["settings"].get() == {"rate": 0.1}
    assert list(task.get_reported_scalars()["loss"]["train"]["y"]) == [1, 0.5, 1 / 3]
    assert len(task.get_reported_plots()) == 2
    assert len(task.get_debug_samples("samples", "noise")) >= 1
    assert "rate" in str(task.export_task())
    assert Task.query_tasks(project_name="week", tags=["monday"]) == [trained]
    assert [found.id for found in Task.get_tasks(project_name="week", task_name="train")] == [trained]
    assert Task.get_projects() and Task.get_project_id("week")
    assert open(InputModel(model_id=model).get_weights(), "rb").read() == b"weights"
    assert [found.id for found in Model.query_models(project_name="week")] == [model]
    task.publish()


def wednesday(trained):
    """Makes variants, and takes them back."""
    copy = Task.clone(source_task=trained, name="variant")
    copy.set_parameters({"General/rate": 0.2})
    Task.enqueue(copy, queue_name="default")
    Task.dequeue(copy)
    copy.mark_started()
    copy.mark_stopped()
    copy.set_archived(True)
    copy.reset(force=True)
    draft = Task.create(project_name="week", task_name="draft", script="week.py", add_task_init_call=False)
    draft.set_base_docker("python:3.11")
    draft.rename("renamed")
    draft.move_to_project(new_project_name="week/below")
    draft.set_comment("not needed")
    for gone in (copy, draft):
        assert gone.delete()


def thursday(folder):
    """Data sets: one without a version, and a child of it."""
    path = os.path.join(folder, "data.txt")
    with open(path, "w") as file:
        file.write("one\n")
    first = Dataset.create(dataset_project="week", dataset_name="data")
    first.add_files(path)
    first.upload()
    assert first.finalize()
    child = Dataset.create(dataset_project="week", dataset_name="data", parent_datasets=[first.id])
    with open(path, "a") as file:
        file.write("two\n")
    child.sync_folder(folder)
    child.add_tags("child")
    child.upload()
    assert child.finalize()
    found = Dataset.get(dataset_project="week", dataset_name="data")
    assert found.id == child.id
    assert os.listdir(found.get_local_copy()) == ["data.txt"]
    assert len(Dataset.list_datasets(dataset_project="week", partial_name="data")) == 2


@PipelineDecorator.component(return_values=["double"])
def step(number):
    return 2 * number


@PipelineDecorator.pipeline(name="pipe", project="week", version="1.0")
def pipe(number=2):
    print("result", step(number))


def friday():
    """A pipeline, step by step in this process."""
    PipelineDecorator.debug_pipeline()
    pipe(3)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        trained, model = monday()
        tuesday(trained, model)
        wednesday(trained)
        os.mkdir("data")
        thursday(os.path.join(folder, "data"))
        friday()
        os.chdir("/")
    print("WEEK DONE")


if __name__ == "__main__":
    main()
