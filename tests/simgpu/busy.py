"""A program whose kernels take time; commands on stdin, an answer in JSON for each. Used by test_time.py."""

import ctypes
import json
import sys
import threading
import time
from ctypes import byref, c_float, c_uint64, c_void_p

cu = ctypes.CDLL("libcuda.so.1")


def ok(code):
    assert code == 0, code


def made(function, *arguments):
    handle = c_uint64()
    ok(getattr(cu, function)(byref(handle), *arguments))
    return handle


def context(device=0):
    ok(cu.cuInit(0))
    return made("cuCtxCreate_v2", 0, device)


def kernel(name):
    return made("cuModuleGetFunction", made("cuModuleLoadData", b"image"), name.encode())


def busy(us):
    return kernel(f"cantle_sim_busy_us_{us}")


def stream(flags=1):
    return made("cuStreamCreate", flags)


def event(flags=0):
    return made("cuEventCreate", flags)


def launch(function, on=c_uint64(0), blocks=1):
    return cu.cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, on, None, None)


def synchronize(on):
    ok(cu.cuStreamSynchronize(on))


def seconds(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def hold(on):
    """Lets nothing begin that is queued on this stream from now on, until `release`: then all of it is there at one moment, however late this
    program woke up between two calls. What to release."""
    word = host_word()
    ok(cu.cuStreamWaitValue32_v2(on, word, 1, 1))
    return word


def release(word):
    word[0] = 1


def elapsed_ms(start, end):
    ms = c_float()
    return [cu.cuEventElapsedTime(byref(ms), start, end), ms.value]


def loop(function, on, graph=False):
    """Launches forever, more than the GPU can do."""
    while True:
        ok(cu.cuGraphLaunch(function, on) if graph else launch(function, on))


def saturate(us, contexts=1, device=0):
    """As many contexts with work without end, each from a thread of its own."""

    def tenant():
        context(device)
        loop(busy(us), stream())

    for _ in range(contexts):
        threading.Thread(target=tenant, daemon=True).start()


def host_word():
    pointer = c_void_p()
    ok(cu.cuMemHostAlloc(byref(pointer), ctypes.c_size_t(4096), 0))
    ctypes.memset(pointer, 0, 4096)
    return ctypes.cast(pointer, ctypes.POINTER(c_uint64))


def alloc(size):
    return made("cuMemAlloc_v2", ctypes.c_size_t(size))


def in_thread(action):
    answers, current = [], made("cuCtxGetCurrent")
    thread = threading.Thread(target=lambda: answers.append(cu.cuCtxSetCurrent(current) or action()))
    thread.start()
    thread.join()
    return answers[0]


def until(condition, seconds=60):
    """Its duration."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "never"
        time.sleep(0.0005)
    return time.monotonic() - began


for line in sys.stdin:
    try:
        answer = eval(line)
    except SyntaxError:
        exec(line)
        answer = None
    print(json.dumps(answer, default=lambda _: None), flush=True)
