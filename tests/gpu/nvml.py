"""The witness: NVML asked directly, outside of any slice. Only what the suite needs, through ctypes."""

import ctypes


class MemoryInfo(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class MemoryInfo2(ctypes.Structure):
    """nvmlMemory_v2_t"""

    _fields_ = [("version", ctypes.c_uint), *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used"))]


class Nvml:
    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        # A figure from a simulated GPU must not pass for a real one.
        self.simulated = hasattr(self.lib, "cantle_sim_truth_json")
        self._check(self.lib.nvmlInit_v2(), "nvmlInit")
        count = ctypes.c_uint()
        self._check(self.lib.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
        self.devices = [self._device(index) for index in range(count.value)]
        self.device = self.devices[0]

    def _device(self, index):
        device = ctypes.c_void_p()
        self._check(self.lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)), "nvmlDeviceGetHandleByIndex")
        return device

    @staticmethod
    def _check(code, what):
        if code != 0:
            raise RuntimeError(f"{what} failed with NVML error {code}")

    def memory(self, device=None):
        """Of a card; the first, if none is named."""
        info = MemoryInfo()
        self._check(self.lib.nvmlDeviceGetMemoryInfo(device or self.device, ctypes.byref(info)), "nvmlDeviceGetMemoryInfo")
        return info

    def used(self):
        """On each card."""
        return [self.memory(device).used for device in self.devices]

    def usable(self):
        """What programs can have of the first card: all but the driver's own reserve, where the driver reports that (510 and later)."""
        info = MemoryInfo2(version=ctypes.sizeof(MemoryInfo2) | 2 << 24)
        ask = getattr(self.lib, "nvmlDeviceGetMemoryInfo_v2", None)
        if ask is None or ask(self.device, ctypes.byref(info)):
            return self.memory().total
        return info.total - info.reserved

    def clock_mhz(self):
        """Of the first card's multiprocessors, now; none where the driver does not report it."""
        mhz = ctypes.c_uint()
        return mhz.value if self.lib.nvmlDeviceGetClockInfo(self.device, 1, ctypes.byref(mhz)) == 0 else None

    def process_counts(self):
        """The number of processes in each of NVML's lists of the first card."""
        counts = {}
        for kind in ("Compute", "MPSCompute", "Graphics"):
            count = ctypes.c_uint()
            code = getattr(self.lib, f"nvmlDeviceGet{kind}RunningProcesses_v3")(self.device, ctypes.byref(count), None)
            # 7: there are more than fit.
            counts[kind] = count.value if code in (0, 7) else f"NVML error {code}"
        return counts

    def text(self, function, *args):
        buffer = ctypes.create_string_buffer(96)
        self._check(getattr(self.lib, function)(*args, buffer, len(buffer)), function)
        return buffer.value.decode()

    def describe(self):
        return {
            "model": self.text("nvmlDeviceGetName", self.device),
            "driver": self.text("nvmlSystemGetDriverVersion"),
            "memory_bytes": self.memory().total,
            "cards": len(self.devices),
        }
