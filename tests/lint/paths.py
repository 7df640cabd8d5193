#!/usr/bin/env python3
"""What the pages point at exists: linked files and places, and paths in backticks.

    tests/lint/paths.py [PAGE...]       every Markdown page that git tracks, unless some are named

Links are looked up in every page, with the heading or anchor behind `#`. Paths in backticks are
looked up in the pages of GUIDES alone: from the root, or under a folder that the sentence's list
item or table row names in backticks before. `FOLDER/{a,b}.rs` stands for both.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDES = {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "benches/README.md"}
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
TICKED = re.compile(r"`([^`\s]+)`")
# A path has a slash or a known ending; what has other signs is a name of the code.
PATH = re.compile(r"[\w.{},/-]+/[\w.{},/-]*|[\w.-]+\.(?:rs|py|sh|md|toml|csv|proto|cuh?|yaml|txt)")


def places(text):
    """What a link may lead to in a page: its headings, as GitHub names them, and its anchors."""
    heads = re.findall(r"^#+ (.+)$", text, flags=re.M)
    named = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    return named | set(re.findall(r'<a name="([^"]+)">', text))


def spread(path):
    """a/{b,c}.rs as a/b.rs and a/c.rs."""
    found = re.search(r"\{([^}]*)\}", path)
    if not found:
        return [path]
    head, tail = path[: found.start()], path[found.end() :]
    return [one for part in found[1].split(",") for one in spread(head + part + tail)]


def dead_links(page, text):
    for link in LINK.findall(text):
        name, _, place = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page.parent / name if name else page
        if not target.exists():
            yield f"no file is at {link}"
        elif place and target.is_file() and place not in places(target.read_text()):
            yield f"no place is called {link}"


def missing_paths(text):
    for item in re.split(r"\n\s*\n|\n(?=\s*[-|#])", FENCE.sub("", text)):
        folders = [ROOT]
        for ticked in TICKED.findall(item):
            if not PATH.fullmatch(ticked) or ticked.startswith(("/", "-", "target/", ".")):
                continue
            for path in spread(ticked):
                found = [folder / path for folder in folders if (folder / path).exists()]
                if not found:
                    yield f"no file is at `{path}`"
                folders += [f if f.is_dir() else f.parent for f in found]


def tracked():
    names = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, stdout=subprocess.PIPE)
    return [ROOT / name for name in names.stdout.decode().split("\0") if name]


def main(names):
    found = 0
    for page in [pathlib.Path(name).resolve() for name in names] or tracked():
        text = page.read_text()
        name = str(page.relative_to(ROOT))
        wrong = [*dead_links(page, FENCE.sub("", text))]
        wrong += missing_paths(text) if name in GUIDES else []
        for what in wrong:
            print(f"{name}: {what}")
            found += 1
    if found:
        sys.exit(f"paths.py: {found} of what the pages point at is not there")


if __name__ == "__main__":
    main(sys.argv[1:])
