"""Simulated GPUs from the machine's side: `sim.py LIB_DIR SIM_DIR create SPEC` or `sim.py LIB_DIR SIM_DIR truth`."""

import ctypes
import sys

lib_dir, sim_dir, command = sys.argv[1], sys.argv[2].encode(), sys.argv[3]
cuda = ctypes.CDLL(f"{lib_dir}/sim/libcuda.so.1")
text = ctypes.create_string_buffer(1 << 20)
if command == "create" and cuda.cantle_sim_create(sim_dir, sys.argv[4].encode(), text, len(text)) != 0:
    sys.exit(text.value.decode())
cuda.cantle_sim_truth_json.restype = ctypes.c_ssize_t
assert cuda.cantle_sim_truth_json(sim_dir, text, ctypes.c_size_t(len(text))) >= 0
print(text.value.decode())
