"""The wheel that carries the program: pip installs it, and the command runs."""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

from tools import ROOT

sys.path.insert(0, str(ROOT / "tests" / "e2e"))
sys.path.insert(0, str(ROOT / "deploy" / "wheel"))

from pack import pack
from server import binary


def run(*command):
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    ).stdout


def test_pip_installs_the_command(tmp_path):
    # Debugging information takes minutes to compress.
    program = tmp_path / "ebb"
    run("strip", "-o", program, binary())
    wheel = pack(program, tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    same = [
        hashlib.sha256(Path(path).read_bytes()).digest() for path in (wheel, pack(program, again))
    ]
    assert same[0] == same[1]
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [tmp_path / "venv" / "bin" / "python", "-m", "pip"]
    # No index is needed, and what the wheel says of itself is what pip checks.
    run(*pip, "install", "--no-index", "--quiet", wheel)
    assert run(tmp_path / "venv" / "bin" / "ebb", "--version") == run(binary(), "--version")
    shown = run(*pip, "show", "--files", "ebb")
    assert "../../../bin/ebb" in shown and "licenses/LICENSE" in shown
