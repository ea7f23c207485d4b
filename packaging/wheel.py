"""The wheel: the program in `bin`, its libraries in `lib/cantle` of the environment, and the module for ClearML's own agents."""

import base64
import hashlib
import time
import zipfile

ROOTS = {"bin": "scripts", "lib": "data/lib", "share": "data/share"}
SUMMARY = "Shares GPUs by the slice, and holds every task to its slice"


def write_wheel(out, tree, modules, version, date, glibc, machine, homepage):
    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{machine}"
    info = f"cantle-{version}.dist-info"
    stamp = time.gmtime(max(date, 315532800))[:6]  # A zip knows no time before 1980.
    record = []
    with zipfile.ZipFile(out / f"cantle-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:

        def put(name, content, mode=0o644):
            member = zipfile.ZipInfo(name, stamp)
            member.external_attr, member.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(member, content)

        def add(name, content, mode=0o644):
            put(name, content, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")

        for module in sorted(modules.glob("*.py")):
            add(module.name, module.read_bytes())
        for path in sorted(path for path in tree.rglob("*") if path.is_file()):
            first, rest = path.relative_to(tree).parts[0], path.relative_to(tree).parts[1:]
            if first in ROOTS and "man" not in rest[:1] and "doc" not in rest[:1]:
                mode = 0o755 if first in ("bin", "lib") else 0o644
                add(f"cantle-{version}.data/{ROOTS[first]}/{'/'.join(rest)}", path.read_bytes(), mode)
        license_text = (tree / "share/doc/cantle/copyright").read_bytes()
        add(f"{info}/licenses/LICENSE", license_text)
        lines = [
            "Metadata-Version: 2.4",
            "Name: cantle",
            f"Version: {version}",
            f"Summary: {SUMMARY}",
            "License-Expression: Apache-2.0",
            "License-File: LICENSE",
            "Requires-Python: >=3.6",
            f"Project-URL: Homepage, {homepage}",
        ]
        add(f"{info}/METADATA", ("\n".join(lines) + "\n").encode())
        add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: cantle\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
        record.append(f"{info}/RECORD,,\n")
        put(f"{info}/RECORD", "".join(record))
