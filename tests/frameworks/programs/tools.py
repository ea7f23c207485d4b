"""What people look at GPUs with, in the slice they look from: each tool's view of memory, in MiB."""

import re
import subprocess
import sys

import nvitop
import pynvml
from telling import tell

MIB = 1 << 20


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    seen = {"nvml": [memory.used // MIB, memory.total // MIB]}
    seen["processes"] = len(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu))
    line = output(sys.executable, "-m", "gpustat", "--no-color", "--no-header")
    seen["gpustat"] = [int(number) for number in re.search(r"(\d+) / +(\d+) MB", line).groups()]
    (device,) = nvitop.Device.all()
    seen["nvitop"] = [device.memory_used() // MIB, device.memory_total() // MIB]
    smi = output("nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits")
    seen["nvidia-smi"] = [int(number) for number in smi.split(",")]
    tell(**seen)


main()
