"""The usual tools for GPUs, inside a slice: each tool's view of memory, in MiB."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import nvitop
import pynvml
from telling import tell

MIB = 1 << 20


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def nvtop(program):
    """The memory on its screen, of a terminal of 40 lines: used and total in GiB."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(program, [program, "-C"], {**os.environ, "TERM": "xterm"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    screen, found, deadline = b"", None, time.monotonic() + 180
    while not found and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            screen += os.read(terminal, 65536)
        plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", screen)
        found = re.search(rb"MEM\[[| ]*([\d.]+)Gi/([\d.]+)Gi", plain)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert found, screen
    return [float(number) for number in found.groups()]


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
    if len(sys.argv) > 1:
        seen["nvtop"] = nvtop(sys.argv[1])
    tell(**seen)


main()
