#!/usr/bin/env python3
"""Draws loss against stored bits: calibrated schedules and the best uniform formats, as an SVG.

    benches/plot_frontier.py OUT.svg NAME=QUALITY.csv ...

QUALITY.csv: of benches/gpu/quality.sh. A row stands at the mean width of its sealed pages and the
KL divergence from the 16-bit run on second halves. The best uniform format of a width is the one of
that width or less, neither rotated nor clipped, that loses least.
"""

import csv
import math
import sys

from plot import ACCENT, INK, SOFT, Panel, chart, lin, log

PANEL, HEIGHT = 380, 380
WIDTHS = (2, 3, 4, 6, 8)
UNIFORM = """int8,int8 int4,int4 int4,int2 int3,int3 int3,int2 kitty25,int2 kitty12,int2
int2,int2""".split()


def points(path):
    """(bits, KL) of the schedule, of the uniform formats, and of the best of these so far."""
    schedule, uniform = [], []
    for row in csv.DictReader(open(path)):
        spec = row["kv"].removesuffix(",protect=f16")
        at = (float(row["mean_bits_sealed"]), float(row["kl_second_half"]))
        if spec.startswith("profile:"):
            schedule.append(at)
        elif spec.replace("k=", "").replace("v=", "") in UNIFORM and at[0] <= max(WIDTHS):
            uniform.append(at)
    if not schedule or not uniform:
        sys.exit(f"plot_frontier.py: {path} has no rows of a profile, or none of uniform formats")
    best, least = [], math.inf
    for bits, kl in sorted(uniform):
        if kl < least:
            best += [(bits, least), (bits, kl)] if best else [(bits, kl)]
            least = kl
    return sorted(schedule), sorted(uniform), best + [(max(WIDTHS), least)]


def panel(index, name, path):
    schedule, uniform, best = points(path)
    losses = [kl for _, kl in schedule + uniform]
    low, high = math.floor(math.log10(min(losses))), math.ceil(math.log10(max(losses)))
    frame = (64 + index * PANEL, 44, index * PANEL + PANEL - 16, HEIGHT - 48)
    drawn = Panel(frame, log(2, 8), lin(low, high), name)
    exponent = drawn.y_scale
    drawn.y_scale = lambda kl: exponent(math.log10(kl))
    drawn.y_axis([10.0**power for power in range(low, high + 1)], "" if index else "KL")
    drawn.x_axis(WIDTHS, "bits stored, mean of sealed pages")
    drawn.line(best, INK)
    drawn.line([(bits, kl / 2) for bits, kl in best], SOFT, "4 4")
    drawn.line(schedule, ACCENT)
    drawn.dots(uniform, INK)
    drawn.dots(schedule, ACCENT)
    drawn.legend(
        [("best uniform format so far", INK), ("half of it", SOFT), ("Ebb's schedule", ACCENT)]
    )
    return drawn


def main():
    if len(sys.argv) < 3 or any("=" not in argument for argument in sys.argv[2:]):
        sys.exit("usage: plot_frontier.py OUT.svg NAME=QUALITY.csv ...")
    named = [argument.split("=", 1) for argument in sys.argv[2:]]
    panels = [panel(index, name, path) for index, (name, path) in enumerate(named)]
    chart(sys.argv[1], PANEL * len(panels) + 16, HEIGHT, panels)


if __name__ == "__main__":
    main()
