"""Fractions of GPUs for ClearML's own agents, enforced by cantle.

``clearml-agent daemon --dynamic-gpus`` imports this module when it allocates a part of a GPU, and calls its only
function with the container's whole command line. ``cantle docker-run`` does the work: it holds a lease on that part of
the GPU for as long as the container lives, and nothing here has to be trusted with the limit.
"""

import os
import shutil

__all__ = ["FractionalGpuError", "patch_docker_cmd_gpu_fraction"]

PLACES = ("/usr/local/bin/cantle", "/opt/cantle/bin/cantle")
# Seconds for the slice of a container that has just ended to become free.
PATIENCE = 30


class FractionalGpuError(RuntimeError):
    """The fraction cannot be put into force, so the container must not start."""


def patch_docker_cmd_gpu_fraction(docker_cmd, gpu_fraction=None, **_unknown):
    """Returns the command line to be started instead of ``docker_cmd``, a complete ``docker run …``.

    Raises :class:`FractionalGpuError` rather than let a container run without its limit.
    """
    words = [str(word) for word in docker_cmd]
    if words[1:2] != ["run"]:
        raise FractionalGpuError("not a docker run command line: {}".format(" ".join(words[:3])))
    return [_cantle(), "docker-run", "--gpu", _fraction(gpu_fraction), "--timeout", str(PATIENCE), "--"] + words


def _fraction(given):
    try:
        thousandths = round(float(given) * 1000)
    except (TypeError, ValueError):
        thousandths = 0
    if not 1 <= thousandths <= 1000 or abs(float(given) * 1000 - thousandths) > 1e-6:
        raise FractionalGpuError(
            "{!r} is not a fraction of a GPU; it must be more than 0 and at most 1, in steps of 0.001".format(given)
        )
    return "{:.3f}".format(thousandths / 1000.0)


def _cantle():
    named = os.environ.get("CANTLE_BIN")
    candidates = [named] if named else [shutil.which("cantle")] + list(PLACES)
    for path in candidates:
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    where = named or "PATH, {}".format(", ".join(PLACES))
    raise FractionalGpuError(
        "cantle is not installed (looked in {}); without it a fraction would be a promise that nobody keeps. "
        "Install cantle on this machine, or name the program in CANTLE_BIN".format(where)
    )
