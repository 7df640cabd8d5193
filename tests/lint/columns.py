#!/usr/bin/env python3
"""No line of code or prose is wider than 100 columns.

    tests/lint/columns.py [FILE...]     the files that git tracks, unless some are named

Looked at: Rust, CUDA and C++, Python, shell, proto, TOML, Markdown, JavaScript and CSS. Let
through is what cannot be broken: rows of Markdown tables, link targets, and lines that are one word
after their indent. What says "@generated" in its first lines is left to its generator.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 100
ENDINGS = {
    ".rs",
    ".cu",
    ".cuh",
    ".h",
    ".cpp",
    ".py",
    ".sh",
    ".proto",
    ".toml",
    ".md",
    ".js",
    ".css",
}
ONE_WORD = re.compile(r"\s*(//[/!]?|#|[-*]|\d+\.)?\s*\S+\s*")
TABLE_ROWS = {".md": re.compile(r"\s*\|"), ".rs": re.compile(r"\s*//[/!] \|")}
LINK_ALONE = re.compile(r"\s*(//[/!]?|#|[-*]|\d+\.)?\s*[!<]?\[[^\]]*\][(:].*")


def tracked():
    """Every file that git tracks whose name or first line tells that it is code or prose."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in names.stdout.decode().split("\0"):
        path = ROOT / name
        if not name or not path.is_file():
            continue
        if path.suffix in ENDINGS or (not path.suffix and path.read_bytes()[:2] == b"#!"):
            yield path


def too_wide(text, ending):
    """Lines that are wider than they may be: their number and width."""
    lines = text.splitlines()
    if any("@generated" in line for line in lines[:3]):
        return
    for number, line in enumerate(lines, 1):
        if len(line) <= COLUMNS:
            continue
        table = ending in TABLE_ROWS and TABLE_ROWS[ending].match(line)
        if not (table or ONE_WORD.fullmatch(line) or (ending == ".md" and LINK_ALONE.match(line))):
            yield number, len(line)


def main(names):
    found = 0
    for path in [pathlib.Path(name).resolve() for name in names] or tracked():
        for number, width in too_wide(path.read_text(), path.suffix):
            print(f"{path.relative_to(ROOT)}:{number}: {width} columns")
            found += 1
    if found:
        sys.exit(f"columns.py: {found} lines are wider than {COLUMNS} columns")


if __name__ == "__main__":
    main(sys.argv[1:])
