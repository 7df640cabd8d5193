"""The medians of two builds' runs beside each other: `compare.py OUT`, a folder of compare.sh."""

import csv
import pathlib
import statistics
import sys

KEYS = {
    "attention": ("kernel", "bits", "batch", "seqlen", "hq", "hkv"),
    "throughput": ("in", "out", "n"),
}
FIGURES = {"attention": ("us",), "throughput": ("decode_tok_s", "itl_p50_ms", "ttft_p50_ms")}


def rows(path):
    """Each row as a dictionary; a line that begins with a column's name is a header."""
    header = None
    for line in csv.reader(path.open()):
        if line and line[0] == "engine":
            header = line
        elif line and header:
            yield dict(zip(header, line))


def main(out):
    for name, keys in KEYS.items():
        found = {}
        for build in ("old", "new"):
            for row in rows(out / f"{name}-{build}.csv"):
                key = tuple(row.get(k, "") for k in keys)
                for figure in FIGURES[name]:
                    figures = found.setdefault((key, figure), {})
                    figures.setdefault(build, []).append(float(row[figure]))
        for (key, figure), builds in found.items():
            if set(builds) == {"old", "new"}:
                old, new = (statistics.median(builds[build]) for build in ("old", "new"))
                print(f"{' '.join(key):48} {figure:14} {old:10.2f} {new:10.2f} {new / old:7.3f}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
