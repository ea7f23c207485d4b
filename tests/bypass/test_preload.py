"""Without root the hooks come by LD_PRELOAD. What that catches, and what docs/security.md says it does not."""

import shutil

import pytest

from conftest import LIMIT, NOBODY, assert_held_to_its_slice, assert_not_held
from paths import LINKED, LOADED
from test_access import command

ESCAPES = [
    "own_elf_walk",
    "dlsym_of_a_version",
    "namespace",
    "deepbind_plugin_dlsym",
    "deepbind_plugin_linked",
    "namespace_plugin_dlsym",
    "namespace_plugin_linked",
]

pytestmark = pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv, to become somebody who is not root")


@pytest.fixture
def as_nobody(machine, home_of_nobody):
    """Starts commands in a slice of a user without privileges."""
    return lambda words: machine.start(words, user=NOBODY, env={"HOME": home_of_nobody})


@pytest.mark.parametrize("way", [way for way in LINKED + LOADED if way not in ESCAPES])
def test_catches(machine, programs, as_nobody, way):
    assert_held_to_its_slice(as_nobody(command(programs, way)), machine)


@pytest.mark.parametrize("way", ESCAPES)
def test_does_not_catch(programs, as_nobody, way):
    assert_not_held(as_nobody(command(programs, way)))


SELF_CALLING = """
import ctypes, json, sys
nvml = ctypes.CDLL(sys.argv[1])
count, index, device, info = ctypes.c_uint(), ctypes.c_uint(9), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
found = {}
for suffix in ("", "_v2"):
    statuses = [getattr(nvml, f"nvmlDeviceGetCount{suffix}")(ctypes.byref(count))]
    get = getattr(nvml, f"nvmlDeviceGetHandleByIndex{suffix}")
    statuses += [get(0, ctypes.byref(device)), nvml.nvmlDeviceGetIndex(device, ctypes.byref(index)), get(1, ctypes.byref(device))]
    found[suffix] = [*statuses, count.value, device.value, index.value]
nvml.nvmlDeviceGetMemoryInfo(device, info)
print(json.dumps([found, info[0]]))
"""


def test_a_library_that_calls_itself_is_not_fooled(machine, programs, as_nobody):
    """Real NVML reaches its own functions by name, through us: the answers must not be changed twice, nor the calls go round."""
    as_nobody(["true"]).end()
    uuid = machine.truth()[0]["uuid"]
    env = ["env", f"LD_LIBRARY_PATH={programs}", f"SELF_CALLING_UUID={uuid}"]
    running = as_nobody([*env, "python3", "-c", SELF_CALLING, programs / "libnvidia-ml.so.1"])
    found, total = running.record()
    # Count and index by the slice: one GPU, the driver's second (handle 2), as number 0; there is no other.
    assert found == {"": [0, 0, 0, 2, 1, 2, 0], "_v2": [0, 0, 0, 2, 1, 2, 0]}
    assert total == LIMIT
    running.end()
