"""Asks the filter and the driver behind it for every function, by cuGetProcAddress, and prints how the answers differ: lookup.py NAMES"""

import ctypes
import json
import pathlib
import re
import sys

VERSIONS = [3000, 7000, 11020, 11030, 11080, 12000, 12040, 13000, 13020]
LEGACY, PER_THREAD = 1, 2


class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def name_of(address):
    """The file that a function is in, and its exported name."""
    info = Info()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    return info.file.decode(), (info.name or b"").decode()


def address_in(library, name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def ask(library, entry, words):
    address, status = ctypes.c_void_p(), ctypes.c_int(-1)
    rest = [ctypes.byref(status)] if entry.endswith("_v2") else []
    name, version, flags = words
    code = getattr(library, entry)(name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags), *rest)
    return code, status.value, address.value


def main():
    filtered, driver = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("/run/cantle/real/libcuda.so.1")
    lines = pathlib.Path(sys.argv[1]).read_text().splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith("#")]
    ours, _ = name_of(address_in(filtered, "cuMemAlloc_v2"))
    hooked = {name for name in names if hasattr(filtered, name) and name_of(address_in(filtered, name)) == (ours, name)}
    names_in_driver = {}
    for name in hooked:
        if hasattr(driver, name):
            names_in_driver.setdefault(address_in(driver, name), []).append(name)
    found = {"hooked": len(hooked), "substituted": [], "untouched": 0, "wrong": [], "unexported": []}
    exported = {address_in(driver, name) for name in names if hasattr(driver, name)}
    bases = sorted({re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name) for name in names} | {"cuNothing"})
    for entry in ("cuGetProcAddress", "cuGetProcAddress_v2"):
        for words in ((base, version, flags) for base in bases for version in VERSIONS for flags in (0, LEGACY, PER_THREAD)):
            answer, real = ask(filtered, entry, words), ask(driver, entry, words)
            if real[2] and real[2] not in exported:
                found["unexported"].append(words[0])
            if answer[:2] != real[:2]:
                found["wrong"].append([entry, *words, "the driver's code or status was changed", answer, real])
            elif answer[2] == real[2]:
                found["untouched"] += 1
                if real[2] in names_in_driver:
                    found["wrong"].append([entry, *words, "got past its hook"])
            else:
                file, name = name_of(answer[2])
                # The compiler of the simulated driver may make one of two functions that do the same.
                found["substituted"] += names_in_driver[real[2]]
                if file != ours or address_in(driver, name) != real[2]:
                    found["wrong"].append([entry, *words, f"became {name} of {file}"])
    found["substituted"], found["unexported"] = (sorted(set(found[each])) for each in ("substituted", "unexported"))
    print(json.dumps(found), flush=True)
    sys.stdin.read()


main()
