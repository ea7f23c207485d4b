"""NVIDIA's own device plugin, as it is."""

import json
import os

from processes import Program


class NvidiaPlugin:
    """With `replicas` of each GPU where it is to share them by time-slicing, `sharing` then being more of its options."""

    def __init__(self, program, folder, machine, replicas=None, **sharing):
        words = [program, "--fail-on-init-error"]
        if replicas:
            shared = sharing | {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}
            config = folder / "nvidia.json"
            config.write_text(json.dumps({"version": "v1", "sharing": {"timeSlicing": shared}}))
            words.append(f"--config-file={config}")
        self.program = Program("nvidia-device-plugin", folder, machine.command(*words), {"PATH": os.environ["PATH"]})
