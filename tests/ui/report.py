"""A program of a ClearML user, with everything that it can report. Prints the task's id, and the link that `Task.init` prints."""

import math
import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from clearml import OutputModel, Task

name, rate, steps = sys.argv[1], float(sys.argv[2]), 60
task = Task.init(project_name="pictures", task_name=name, output_uri=True, auto_resource_monitoring=False)
task.connect({"rate": rate, "steps": steps})
task.connect_configuration({"layers": [64, 32]}, name="net")
logger = task.get_logger()
for step in range(steps):
    logger.report_scalar("loss", "train", 10 * math.exp(-rate * step) + 0.1 * (step % 2), step)
    logger.report_scalar("loss", "validation", 12 * math.exp(-rate * step), step)
    logger.report_scalar("accuracy", "validation", 1 - math.exp(-rate * step), step)
    if step % 20 == 0:
        logger.report_image("samples", "noise", step, image=np.random.default_rng(step).integers(0, 255, (32, 48, 3), dtype=np.uint8))
    print(f"step {step}")
logger.report_single_value("best", 0.125)
logger.report_histogram("weights", "layer 1", values=np.arange(20), iteration=1, xaxis="bin", yaxis="count")
logger.report_confusion_matrix("confusion", "of two", matrix=np.array([[9, 1], [2, 8]]), iteration=1)
logger.report_surface("surface", "of a hill", matrix=np.outer(np.hanning(12), np.hanning(12)), iteration=1)
frame = pd.DataFrame({"city": ["Rome", "Oslo"], "visitors": [3, 4]})
logger.report_table("table", "of pandas", table_plot=frame, iteration=1)
plt.plot([1, 2, 3], [1, 4, 9], label="squares")
plt.title("a figure of matplotlib")
plt.show()
# One that Plotly has no equal for is sent as a picture.
logger.report_matplotlib_figure("as a picture", "polar", plt.figure(), iteration=1, report_image=False, report_interactive=False)
logger.report_media("page", "html", iteration=1, stream=__import__("io").StringIO("<script>document.title='taken'</script>"), file_extension="html")
task.upload_artifact("frame", frame, wait_on_upload=True)
task.upload_artifact("settings", {"rate": rate}, wait_on_upload=True)
with open("weights.bin", "wb") as file:
    file.write(b"weights")
OutputModel(task=task, name="net", framework="PyTorch").update_weights("weights.bin", auto_delete_file=False)
link = task.get_output_log_web_page()
task.flush(wait_for_uploads=True)
task.close()
print("REPORTED", task.id, link)
