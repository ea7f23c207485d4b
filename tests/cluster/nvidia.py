"""NVIDIA's own device plugin, as it is, on simulated GPUs."""

import json
import os
import pathlib

from processes import Program

ROOT = pathlib.Path(__file__).resolve().parents[2]


class NvidiaPlugin:
    """With `replicas` of each GPU where it is to share them by time-slicing, `sharing` then being more of its options."""

    def __init__(self, program, folder, sim_dir, sim_gpus, replicas=None, **sharing):
        env = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(ROOT / "dist/lib/cantle/sim"),
            "CANTLE_SIM_DIR": str(sim_dir),
            "CANTLE_SIM_GPUS": sim_gpus,
        }
        words = [program, "--fail-on-init-error"]
        if replicas:
            shared = sharing | {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}
            config = folder / "nvidia.json"
            config.write_text(json.dumps({"version": "v1", "sharing": {"timeSlicing": shared}}))
            words.append(f"--config-file={config}")
        self.program = Program("nvidia-device-plugin", folder, words, env)
