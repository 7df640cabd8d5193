#!/usr/bin/env python3
"""Draws what a cache costs against the bits that it stores: calibrated schedules, and the best uniform formats, as an SVG.

    benches/plot_frontier.py OUT.svg NAME=QUALITY.csv ...

QUALITY.csv: of benches/gpu/quality.sh. A row is at the mean width of its sealed pages and the KL divergence from the 16-bit run on second
halves. The best uniform format of a width is the one of that width or less, neither rotated nor clipped, that loses least. Needs
nothing but Python.
"""

import csv
import math
import sys

PANEL, HEIGHT, LEFT, TOP, BOTTOM = 380, 380, 64, 44, 48
WIDTHS = (2, 3, 4, 6, 8)
UNIFORM = {
    "int8,int8",
    "int4,int4",
    "int4,int2",
    "int3,int3",
    "int3,int2",
    "kitty25,int2",
    "kitty12,int2",
    "int2,int2",
}


def points(path):
    """Of the schedule, the uniform formats and the best of these, (bits, KL) in order of bits; and the loss of half the best's."""
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
    left, right = LEFT + index * PANEL, index * PANEL + PANEL - 16
    losses = [kl for _, kl in schedule + uniform]
    low, high = math.floor(math.log10(min(losses))), math.ceil(math.log10(max(losses)))

    def x(bits):
        return left + (math.log2(bits) - 1) / 2 * (right - left)

    def y(kl):
        return TOP + (high - math.log10(kl)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    svg = [f'<text x="{left}" y="24" font-size="14">{name}</text>']
    for power in range(low, high + 1):
        at = y(10**power)
        svg.append(f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e5e5"/>')
        svg.append(
            f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        )
    for bits in WIDTHS:
        svg.append(
            f'<text x="{x(bits):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{bits}</text>'
        )
    svg.append(
        f'<text x="{(left + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">bits stored, mean of sealed pages</text>'
    )
    for line, colour, dash in (
        (best, "#555", ""),
        ([(bits, kl / 2) for bits, kl in best], "#999", "4 4"),
        (schedule, "#c2410c", ""),
    ):
        path = " ".join(f"{x(b):.1f},{y(kl):.1f}" for b, kl in line)
        svg.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
    for dots, colour in ((uniform, "#555"), (schedule, "#c2410c")):
        svg += [
            f'<circle cx="{x(b):.1f}" cy="{y(kl):.1f}" r="3.5" fill="{colour}"/>' for b, kl in dots
        ]
    for i, (label, colour) in enumerate(
        (
            ("uniform formats, the best so far", "#555"),
            ("half of it", "#999"),
            ("Ebb's schedule", "#c2410c"),
        )
    ):
        svg.append(
            f'<text x="{right - 6}" y="{TOP + 14 + 16 * i}" text-anchor="end" fill="{colour}">{label}</text>'
        )
    return svg


def main():
    if len(sys.argv) < 3 or any("=" not in argument for argument in sys.argv[2:]):
        sys.exit("usage: plot_frontier.py OUT.svg NAME=QUALITY.csv ...")
    panels = [argument.split("=", 1) for argument in sys.argv[2:]]
    width = PANEL * len(panels) + 16
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">KL</text>',
    ]
    for index, (name, path) in enumerate(panels):
        svg += panel(index, name, path)
    open(sys.argv[1], "w").write("\n".join(svg + ["</svg>\n"]))


if __name__ == "__main__":
    main()
