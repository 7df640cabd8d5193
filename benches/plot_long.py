#!/usr/bin/env python3
"""Draws what long answers lose by place, progressive and with formats that are there from the start, as an SVG.

    benches/plot_long.py OUT.svg TITLE=LONG.csv ...

LONG.csv: of benches/long_answers.py. Runs that lose more than LIMIT on the mean are left out: the plot is linear, since what has not
shrunk yet loses nothing. Needs nothing but Python.
"""

import csv
import sys

PANEL, HEIGHT, LEFT, TOP, BOTTOM, LIMIT = 420, 320, 64, 44, 48, 0.05
COLOURS = ("#c2410c", "#555", "#2563eb", "#999")


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
    left, right = LEFT + index * PANEL, index * PANEL + PANEL - 16
    most = max(kl for points, _ in found.values() for _, kl in points)
    end = max(x for points, _ in found.values() for x, _ in points)
    step = next(s for s in (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02) if most / s <= 6)
    high = (int(most / step) + 2) * step  # with room for the names

    def x(token):
        return left + token / end * (right - left)

    def y(kl):
        return TOP + (1 - kl / high) * (HEIGHT - TOP - BOTTOM)

    svg = [f'<text x="{left}" y="24" font-size="14">{title}</text>']
    for i in range(int(high / step + 0.5) + 1):
        svg.append(
            f'<line x1="{left}" x2="{right}" y1="{y(i * step):.1f}" y2="{y(i * step):.1f}" stroke="#e5e5e5"/>'
        )
        svg.append(
            f'<text x="{left - 8}" y="{y(i * step) + 4:.1f}" text-anchor="end">{i * step:g}</text>'
        )
    for token in range(0, int(end) + 1, 1024):
        svg.append(
            f'<text x="{x(token):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{token:,}</text>'
        )
    svg.append(
        f'<text x="{(left + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">token of the answer</text>'
    )
    for i, (kv, (points, bits)) in enumerate(found.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x(token):.1f},{y(kl):.1f}" for token, kl in points)
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = f"{name(kv)}, {bits:.2f} bits at the end"
        svg.append(
            f'<text x="{right - 6}" y="{TOP + 14 + 16 * i}" text-anchor="end" fill="{colour}">{label}</text>'
        )
    return svg


def main():
    if len(sys.argv) < 3 or any("=" not in argument for argument in sys.argv[2:]):
        sys.exit("usage: plot_long.py OUT.svg TITLE=LONG.csv ...")
    panels = [argument.rsplit("=", 1) for argument in sys.argv[2:]]
    width = PANEL * len(panels) + 16
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">KL</text>',
    ]
    for index, (title, path) in enumerate(panels):
        svg += panel(index, title, path)
    open(sys.argv[1], "w").write("\n".join(svg + ["</svg>\n"]))


if __name__ == "__main__":
    main()
