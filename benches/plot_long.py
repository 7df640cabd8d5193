#!/usr/bin/env python3
"""Draws loss over the place in long answers, as an SVG.

    benches/plot_long.py OUT.svg TITLE=LONG.csv ...

LONG.csv: of benches/long_answers.py. Runs that lose more than LIMIT on the mean are left out: the
plot is linear, since what has not shrunk yet loses nothing.
"""

import csv
import sys

from plot import ACCENT, INK, SECOND, SOFT, Panel, chart, lin, round_step

PANEL, HEIGHT, LIMIT = 420, 320, 0.05
COLOURS = (ACCENT, INK, SECOND, SOFT)


def runs(path):
    """By run, in order: [(middle of the bin, KL)], and its bits at the end."""
    found = {}
    rows = list(csv.DictReader(open(path)))
    width = min(int(r["from"]) for r in rows if int(r["from"]) > 0)
    for row in rows:
        points, _ = found.setdefault(row["kv"], ([], float(row["mean_bits_at_end"])))
        points.append((int(row["from"]) + width / 2, float(row["kl"])))
    return {
        kv: run for kv, run in found.items() if sum(kl for _, kl in run[0]) / len(run[0]) <= LIMIT
    }


def name(kv):
    if kv == "logged":
        return "progressive"
    return "static" if kv.startswith("profile:") else kv.replace(",protect=int8", "")


def panel(index, title, path):
    found = runs(path)
    most = max(kl for points, _ in found.values() for _, kl in points)
    middles = [x for points, _ in found.values() for x, _ in points]
    end = int(max(middles) + min(middles))
    step = round_step(most)
    steps = int(most / step) + 2  # with room for the names
    frame = (64 + index * PANEL, 44, index * PANEL + PANEL - 16, HEIGHT - 48)
    drawn = Panel(frame, lin(0, end), lin(0, steps * step), title)
    drawn.y_axis([i * step for i in range(steps + 1)], "" if index else "KL")
    drawn.x_axis(range(0, end + 1, 1024), "token of the answer")
    names = []
    for i, (kv, (points, bits)) in enumerate(found.items()):
        drawn.line(points, COLOURS[i % len(COLOURS)])
        names.append((f"{name(kv)}, {bits:.2f} bits at the end", COLOURS[i % len(COLOURS)]))
    drawn.legend(names)
    return drawn


def main():
    if len(sys.argv) < 3 or any("=" not in argument for argument in sys.argv[2:]):
        sys.exit("usage: plot_long.py OUT.svg TITLE=LONG.csv ...")
    named = [argument.rsplit("=", 1) for argument in sys.argv[2:]]
    panels = [panel(index, title, path) for index, (title, path) in enumerate(named)]
    chart(sys.argv[1], PANEL * len(panels) + 16, HEIGHT, panels)


if __name__ == "__main__":
    main()
