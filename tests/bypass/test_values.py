"""The values of CUDA's enums that decide what is charged: the filter's list of them has all that the header at hand has."""

import pathlib
import re
import sysconfig

import pytest

from machine import ROOT

LIST = ROOT / "crates/tenant/shim/data/cuda-values.txt"
HEADERS = [pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cuda_runtime/include/cuda.h"]
HEADERS += sorted(pathlib.Path("/usr/local").glob("cuda*/include/cuda.h"))
AT_HAND = [header for header in HEADERS if header.exists()]


def listed():
    """Name to value, by enum."""
    values, of = {}, None
    for line in LIST.read_text().splitlines():
        if line.startswith("= "):
            of = values.setdefault(line[2:], {})
        elif line and not line.startswith("#"):
            _, name, value, _ = line.split()
            of[name] = int(value)
    return values


def declared(text, enums):
    """The same of a header."""
    text = re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    values = {enum: {} for enum in enums}
    for body, enum in re.findall(r"typedef\s+enum\s+\w+\s*\{(.*?)\}\s*(\w+)\s*;", text, flags=re.DOTALL):
        if enum in values:
            values[enum] = {name: int(value, 0) for name, value in re.findall(r"(\w+)\s*=\s*(\w+)", body)}
    for name, value in re.findall(r"#define\s+(CU\w+)\s+(0x\w+|\d+)\s", text):
        for beginning in enums:
            if name.startswith(beginning + "_"):
                values[beginning][name] = int(value, 0)
    return values


def unlisted(text):
    known = listed()
    found = declared(text, known)
    return {name for enum, values in found.items() for name, value in values.items() if known[enum].get(name) != value}


@pytest.mark.skipif(not AT_HAND, reason="no header of CUDA here")
def test_every_value_of_the_header_is_listed():
    for header in AT_HAND:
        text = header.read_text(errors="replace")
        assert sum(map(len, declared(text, listed()).values())) > 30, "the header was not understood"
        assert unlisted(text) == set(), header


def test_a_new_value_is_noticed():
    """The negative control."""
    enum = "typedef enum CUmemLocationType_enum { CU_MEM_LOCATION_TYPE_DEVICE = 0x1, CU_MEM_LOCATION_TYPE_MOON = 0x7 } CUmemLocationType;"
    assert unlisted(enum) == {"CU_MEM_LOCATION_TYPE_MOON"}
    assert unlisted("#define CUDA_ARRAY3D_FOLDED 0x200\n") == {"CUDA_ARRAY3D_FOLDED"}
