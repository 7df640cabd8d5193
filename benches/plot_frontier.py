#!/usr/bin/env python3
"""Draws loss against stored bits: calibrated schedules and the best uniform mixes, as an SVG.

    benches/plot_frontier.py OUT.svg NAME=QUALITY.csv[,QUALITY.csv...] ...

QUALITY.csv: of benches/gpu/quality.sh and rotation.sh. A row stands at the mean width of its sealed
pages and the KL divergence from the 16-bit run on second halves. The best uniform mix of a width is
the one of that width or less that loses least: one line for the schedule's own formats with V
rotated, as the schedule's is, and one for formats that are neither rotated nor clipped.
"""

import csv
import math
import sys

from plot import ACCENT, INK, SECOND, Panel, chart, lin, log

PANEL, HEIGHT = 380, 380
WIDTHS = (2, 3, 4, 6, 8)
PLAIN = """int8,int8 int4,int4 int4,int2 int3,int3 int3,int2 kitty25,int2 kitty12,int2
int2,int2""".split()
SAME = [
    f"{keys},{values},rotate=v"
    for keys in ("int8", "int4", "kitty25c", "kitty12c", "int2c")
    for values in ("int8", "int4", "int2c")
]


def points(paths):
    """(bits, KL) of the schedule, of the same formats rotated alike, and of plain ones."""
    schedule, same, plain = set(), set(), set()
    for row in (row for path in paths for row in csv.DictReader(open(path))):
        spec = row["kv"].removesuffix(",protect=f16").removeprefix("k=").replace(",v=", ",")
        at = (float(row["mean_bits_sealed"]), float(row["kl_second_half"]))
        if spec.startswith("profile:") and not spec.startswith("profile:rotated"):
            schedule.add(at)
        elif at[0] <= max(WIDTHS):
            same |= {at} if spec in SAME else set()
            plain |= {at} if spec in PLAIN else set()
    if not schedule or not same or not plain:
        sys.exit(f"plot_frontier.py: {paths} lack rows of a profile, or of uniform mixes")
    return sorted(schedule), sorted(same), sorted(plain)


def steps(mixes):
    """The best of the mixes so far, as a line up to the widest that gains."""
    best, least = [], math.inf
    for bits, kl in mixes:
        if kl < least:
            best += [(bits, least), (bits, kl)] if best else [(bits, kl)]
            least = kl
    return best


def panel(index, name, paths):
    schedule, same, plain = points(paths)
    losses = [kl for _, kl in schedule + same + plain]
    low, high = math.floor(math.log10(min(losses))), math.ceil(math.log10(max(losses)))
    frame = (64 + index * PANEL, 44, index * PANEL + PANEL - 16, HEIGHT - 48)
    drawn = Panel(frame, log(2, 8), lin(low, high), name)
    exponent = drawn.y_scale
    drawn.y_scale = lambda kl: exponent(math.log10(kl))
    drawn.y_axis([10.0**power for power in range(low, high + 1)], "" if index else "KL")
    drawn.x_axis(WIDTHS, "bits stored, mean of sealed pages")
    for mixes, colour in ((plain, INK), (same, SECOND)):
        drawn.line(steps(mixes), colour)
        drawn.dots(mixes, colour)
    drawn.line(schedule, ACCENT)
    drawn.dots(schedule, ACCENT)
    drawn.legend(
        [
            ("best plain mix of the width or less", INK),
            ("its own formats, V rotated", SECOND),
            ("Ebb's schedule", ACCENT),
        ]
    )
    return drawn


def main():
    if len(sys.argv) < 3 or any("=" not in argument for argument in sys.argv[2:]):
        sys.exit("usage: plot_frontier.py OUT.svg NAME=QUALITY.csv[,QUALITY.csv...] ...")
    named = [argument.split("=", 1) for argument in sys.argv[2:]]
    panels = [panel(index, name, paths.split(",")) for index, (name, paths) in enumerate(named)]
    chart(sys.argv[1], PANEL * len(panels) + 16, HEIGHT, panels)


if __name__ == "__main__":
    main()
