"""Images with a copy of libcuda. The copies are the simulated driver's; one that stands in for a library of CUDA's compatibility package has the
version of its own driver written into it, and a note for which drivers it is, if it is to have one."""

import json
import pathlib
import struct
import subprocess

MARK = b"CANTLE-SIM-COMPAT:"
SIZE = 32


def library(source, to, version, drivers=None):
    """Writes a libcuda of the driver `version`, which works over an older one."""
    content = pathlib.Path(source).read_bytes()
    assert content.count(MARK + bytes(SIZE - len(MARK))) == 1
    patched = MARK + version.encode()
    pathlib.Path(to).write_bytes(content.replace(MARK + bytes(SIZE - len(MARK)), patched.ljust(SIZE, b"\0")))
    if drivers is not None:
        add_note(to, drivers)


def add_note(path, drivers):
    text = json.dumps({"Format": 1, "CUDA Version": "13.0", "Driver": drivers, "Device": [1]}).encode()
    owner = b"NVIDIA Corporation\0\0"
    note = pathlib.Path(f"{path}.note")
    note.write_bytes(struct.pack("<III", len(owner), len(text), 1) + owner + text)
    section = ".note.cuda.fwd_compatibility"
    command = ["objcopy", f"--add-section={section}={note}", path]
    subprocess.run(command, check=True, capture_output=True)
    note.unlink()
