#!/usr/bin/env python3
"""From what Nsight Compute measured of `ebb-bench step` to a table of one decode step: kernels,
their time, and the time of their bytes.

    benches/step_profile.py NCU.csv [--gbps 4420] > STEP.csv

NCU.csv: `ncu --csv` with gpu__time_duration.sum, dram__bytes_read.sum and dram__bytes_write.sum, of
at least one whole step (benches/gpu/inspect.sh says how). --gbps: what memory gives, for the last
column.
"""

import argparse
import csv
import re

FIRST = "embed"  # the kernel that a step begins with


def kernels(path):
    """(name, microseconds, bytes) of each launch, in order."""
    with open(path) as file:
        rows = list(csv.DictReader(line for line in file if line.startswith('"')))
    launches = {}
    for row in rows:
        if row["ID"]:
            launch = launches.setdefault(int(row["ID"]), {"name": row["Kernel Name"]})
            launch[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    for _, launch in sorted(launches.items()):
        read, written = (launch[f"dram__bytes_{side}.sum"] for side in ("read", "write"))
        yield launch["name"], launch["gpu__time_duration.sum"] / 1e3, read + written


def step(launches):
    """The launches of the first whole step."""
    begins = [i for i, launch in enumerate(launches) if launch[0].startswith(FIRST)]
    if len(begins) < 2:
        raise SystemExit(f"no whole step among {len(launches)} launches: profile more of them")
    return launches[begins[0] : begins[1]]


# What a product is, by the kernel behind it, or by that before it: its own name tells nobody.
BEHIND = {
    "rope": "QKV",
    "decode": "QKV",
    "swiglu": "gate and up",
    "experts_route": "router",
    "sample": "logits",
}
BEFORE = {"decode": "attention's output", "swiglu": "down"}


def label(launches, i):
    name = launches[i][0]
    if not re.match(r"nvjet|.*gemm|.*cutlass|product_", name):
        return "sum of a divided product" if "splitKreduce" in name else name
    before = next((n for n, *_ in reversed(launches[:i]) if "splitK" not in n), "")
    behind = next((n for n, *_ in launches[i + 1 :] if "splitK" not in n), "")
    places = [place for kernel, place in BEHIND.items() if behind.startswith(kernel)]
    places += [place for kernel, place in BEFORE.items() if before.startswith(kernel)]
    return f"product: {next(iter(places), name)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ncu")
    parser.add_argument("--gbps", type=float, default=4420)
    args = parser.parse_args()
    launches = step(list(kernels(args.ncu)))
    table = {}
    for i, (_, us, moved) in enumerate(launches):
        row = table.setdefault(label(launches, i), [0, 0.0, 0.0])
        row[0] += 1
        row[1] += us
        row[2] += moved
    total = [sum(column) for column in zip(*table.values())]
    print("kernel,launches,us,us_each,MB,GBps,us_of_bytes")
    for name, (count, us, moved) in [
        *sorted(table.items(), key=lambda item: -item[1][1]),
        ("all", total),
    ]:
        print(
            f"{name},{count},{us:.0f},{us / count:.1f},"
            f"{moved / 1e6:.0f},{moved / us / 1e3:.0f},{moved / args.gbps / 1e3:.0f}"
        )


if __name__ == "__main__":
    main()
