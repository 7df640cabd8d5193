#!/usr/bin/env python3
"""Draws time against stored bits of decode attention as an SVG.

    benches/plot_attention.py ATTENTION.csv OUT.svg [--device H200] [--tb-per-s 4.42]
        [--shape 128x8192]

ATTENTION.csv: of `ebb-bench attention`. Pairs of formats stand at the mean of their nominal bits;
polar keys, which are bound by arithmetic, are left out. Several rows of a width: the fastest. The
dashed line is the time that the codes alone take at the device's read bandwidth.
"""

import argparse
import csv
import math

from plot import ACCENT, SOFT, Panel, chart, lin, log

WIDTH, HEIGHT = 640, 400
WIDTHS = (2, 4, 8, 16)


def points(path, batch, seqlen):
    """(bits, µs) of 32 query heads over 8, in order of bits."""
    found = {}
    for row in csv.DictReader(open(path)):
        shape = (row["batch"], row["seqlen"], row["hq"], row["hkv"])
        other = row["bits"] == "mixed" or "polar" in row["kernel"] or "q_len" in row["kernel"]
        if shape != (batch, seqlen, "32", "8") or other:
            continue
        bits = [float(b) for b in row["bits"].split("/")]
        at = sum(bits) / len(bits)
        found[at] = min(float(row["us"]), found.get(at, math.inf))
    return sorted(found.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ours")
    parser.add_argument("out")
    parser.add_argument("--device", default="H200")
    parser.add_argument("--tb-per-s", type=float, default=4.42, help="what the device reads")
    parser.add_argument("--shape", default="128x8192", help="sequences x tokens of each")
    args = parser.parse_args()
    batch, seqlen = args.shape.split("x")
    ours = points(args.ours, batch, seqlen)
    if not ours:
        parser.error(f"no rows of {args.shape} in {args.ours}")
    values = int(batch) * int(seqlen) * 8 * 128 * 2
    roof = [(bits, values * bits / 8 / (args.tb_per_s * 1e6)) for bits in WIDTHS]
    top = math.ceil(max(us for _, us in ours) / 200) * 200
    title = f"Decode attention, {batch} × {seqlen} tokens, 32/8 heads of 128, {args.device}"
    panel = Panel((64, 42, WIDTH - 24, HEIGHT - 48), log(2, 16), lin(0, top), title)
    panel.y_axis(range(0, top + 1, 200), "µs")
    panel.x_axis(WIDTHS, "nominal bits, mean of keys and values")
    panel.line(roof, SOFT, "4 4")
    panel.line(ours, ACCENT)
    panel.dots(ours, ACCENT)
    roof_name = f"codes alone at {args.tb_per_s:g} TB/s"
    for name, line, colour, below in (("Ebb", ours, ACCENT, -10), (roof_name, roof, SOFT, 18)):
        bits, us = min(line, key=lambda point: abs(point[0] - 4))
        panel.text(panel.x(bits) + 6, panel.y(us) + below, name, colour=colour)
    chart(args.out, WIDTH, HEIGHT, [panel])


if __name__ == "__main__":
    main()
