"""Creating machines, choosing devices, and what is said when that fails."""

import ctypes
import subprocess
import sys

import pytest

from conftest import LIB


def init(machine, **env):
    """cuInit's code and what it wrote to stderr."""
    code = "import ctypes,sys;sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={k: v for k, v in {**machine.env, **env}.items() if v is not None},
        capture_output=True, text=True, timeout=60,
    )
    return done.returncode, done.stderr


def test_absent_machine(machine):
    code, said = init(machine, CANTLE_SIM_GPUS=None)
    assert code == 100 and said.count("\n") == 1 and "CANTLE_SIM_GPUS" in said


def test_once_created_the_spec_is_not_needed_and_another_is_refused(machine):
    assert init(machine) == (0, "")
    assert init(machine, CANTLE_SIM_GPUS=None) == (0, "")
    assert init(machine, CANTLE_SIM_GPUS="2xA100-40GB,1xa100-40gb") == (0, "")
    code, said = init(machine, CANTLE_SIM_GPUS="2xA100-40GB")
    assert code == 1 and "already simulates 3xA100-40GB, not 2xA100-40GB" in said


def test_unknown_model(machine):
    code, said = init(machine, CANTLE_SIM_GPUS="1xA1000")
    assert code == 1 and "unknown simulated GPU model `A1000`; known: V100-16GB" in said and said.count("\n") == 1


def test_foreign_state_is_left_alone(machine):
    folder = machine.folder / "sim"
    folder.mkdir()
    (folder / "state").write_text("something else")
    code, said = init(machine)
    assert code == 1 and "not a simulated machine" in said
    assert (folder / "state").read_text() == "something else"


def test_sixteen_processes_create_one_machine(machine):
    code = "import ctypes;exit(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    started = [subprocess.Popen([sys.executable, "-c", code], env=machine.env) for _ in range(16)]
    assert [process.wait() for process in started] == [0] * 16
    assert len(machine.truth()) == 3
    assert sorted(path.name for path in (machine.folder / "sim").iterdir()) == ["state"]


def test_control_functions(machine, tmp_path):
    library = ctypes.CDLL(str(LIB / "libnvidia-ml.so.1"))
    error = ctypes.create_string_buffer(200)
    create = lambda folder, spec: library.cantle_sim_create(str(folder).encode(), spec, error, ctypes.c_size_t(200))  # noqa: E731
    assert create(tmp_path / "x", b"1xT4-16GB") == 0
    assert create(tmp_path / "x", b"1xT4-16GB") == 0
    assert create(tmp_path / "x", b"2xT4-16GB") == -1 and b"already simulates 1xT4-16GB" in error.value
    assert library.cantle_sim_use(str(tmp_path / "none").encode()) == -1
    buffer = ctypes.create_string_buffer(8)
    length = library.cantle_sim_truth_json(str(tmp_path / "x").encode(), buffer, ctypes.c_size_t(8))
    assert length > 8 and buffer.value == b'{"gpus"'


def uuids(client):
    get = "[(lambda u: [cu.cuDeviceGetUuid_v2(u, i), u.raw.hex()])(ctypes.create_string_buffer(16))[1] for i in range({})]"
    code = client("init()")
    count = client("number('cuDeviceGetCount')")[1] if code == 0 else 0
    return client(get.format(count))


@pytest.mark.gpus("2xT4-16GB,1xV100-32GB")
def test_visible_devices(machine):
    every = uuids(machine.client())
    assert len(set(every)) == 3
    name = "GPU-" + machine.truth()[1]["uuid"].removeprefix("GPU-")
    for setting, expected in {
        "2,0": [2, 0],
        "1": [1],
        name: [1],
        name[:12]: [1],
        "0,7,1": [0],  # ends at the first that does not exist
        "-1": [],
        "": [],
        "0,0": [],
        "0," + name: [0, 1],
    }.items():
        assert uuids(machine.client(CUDA_VISIBLE_DEVICES=setting)) == [every[i] for i in expected], setting


@pytest.mark.gpus("1xT4-16GB,1xA100-80GB:mig")
def test_a_gpu_in_mig_mode_is_no_cuda_device_without_instances(machine):
    assert len(uuids(machine.client())) == 1


def test_identity_is_stable_and_the_same_in_both_libraries(machine, tmp_path):
    first = uuids(machine.client())
    assert [g["uuid"].removeprefix("GPU-").replace("-", "") for g in machine.truth()] == first
    bus = machine.client()
    bus("init()")
    text = "(lambda t: [cu.cuDeviceGetPCIBusId(t, 32, 1), t.value.decode()])(ctypes.create_string_buffer(32))"
    assert bus(text) == [0, "0000:11:00.0"]
