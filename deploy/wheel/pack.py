#!/usr/bin/env python3
"""Packs a program into a wheel, which pip installs as the command `ebb`.

    deploy/wheel/pack.py PROGRAM FOLDER

Format: https://packaging.python.org/specifications/binary-distribution-format. The same program
gives the same bytes.
"""

import base64
import hashlib
import pathlib
import platform
import stat
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The earliest time that a ZIP archive can tell.
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def version(program):
    """As the program tells it: `ebb 0.1.0`."""
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return told.stdout.split()[1]


def tags():
    """A program without libraries runs with either C library, and with any Python."""
    machine = platform.machine()
    return [f"py3-none-{linux}_{machine}" for linux in ("manylinux_2_17", "musllinux_1_1")]


def pack(program, folder):
    """Writes the wheel and returns its path."""
    name = f"ebb-{version(program)}"
    tag = "py3-none-" + ".".join(tag.removeprefix("py3-none-") for tag in tags())
    about = [
        "Metadata-Version: 2.4",
        "Name: ebb",
        f"Version: {version(program)}",
        "Summary: LLM serving engine that spends KV-cache precision as a resource",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
        "",
        (ROOT / "README.md").read_text(),
    ]
    wheel = ["Wheel-Version: 1.0", "Generator: ebb", "Root-Is-Purelib: false"]
    wheel += [f"Tag: {tag}" for tag in tags()]
    files = {
        f"{name}.data/scripts/ebb": pathlib.Path(program).read_bytes(),
        f"{name}.dist-info/METADATA": "\n".join(about).encode(),
        f"{name}.dist-info/WHEEL": "\n".join([*wheel, ""]).encode(),
        f"{name}.dist-info/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    record = f"{name}.dist-info/RECORD"
    lines = [f"{path},{digest(data)},{len(data)}" for path, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    path = pathlib.Path(folder) / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in files.items():
            info = zipfile.ZipInfo(file, LONG_AGO)
            mode = 0o755 if "/scripts/" in file else 0o644
            info.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=9)
    return path


def digest(data):
    """As RECORD has it."""
    sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + sha.rstrip(b"=").decode()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(pack(sys.argv[1], sys.argv[2]))
