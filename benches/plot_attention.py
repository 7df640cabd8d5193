#!/usr/bin/env python3
"""Draws time against stored bits of decode attention, ours and the best of others, as an SVG.

    benches/plot_attention.py OURS.csv PEERS.csv OUT.svg [BATCH SEQLEN]

Needs nothing but Python. Pairs of formats stand at the mean of their nominal bits; polar keys, which are bound by arithmetic, are left out.
"""

import csv
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 64, 150, 40, 48
READ_BYTES_PER_US = 4.42e6  # what an H200 reads


def points(path, batch, seqlen):
    found = {}
    for row in csv.DictReader(open(path)):
        if (
            (row["batch"], row["seqlen"]) != (batch, seqlen)
            or row["bits"] == "mixed"
            or "polar" in row["kernel"]
        ):
            continue
        bits = [float(b) for b in row["bits"].split("/")]
        at = sum(bits) / len(bits)
        found[at] = min(float(row["us"]), found.get(at, math.inf))
    return sorted(found.items())


def main():
    ours_path, peers_path, out = sys.argv[1:4]
    batch, seqlen = sys.argv[4:6] if len(sys.argv) > 5 else ("128", "8192")
    ours, peers = points(ours_path, batch, seqlen), points(peers_path, batch, seqlen)
    if not ours or not peers:
        sys.exit(f"plot_attention.py: no rows of {batch} x {seqlen} in {ours_path} or {peers_path}")
    values = int(batch) * int(seqlen) * 8 * 128 * 2
    roof = [(b, values * b / 8 / READ_BYTES_PER_US) for b in (2, 4, 8, 16)]
    top = math.ceil(max(us for _, us in ours + peers) / 200) * 200

    def x(bits):
        return LEFT + (math.log2(bits) - 1) / 3 * (WIDTH - LEFT - RIGHT)

    def y(us):
        return TOP + (1 - us / top) * (HEIGHT - TOP - BOTTOM)

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">Decode attention, {batch} × {seqlen} tokens, 32/8 heads of 128, H200</text>',
    ]
    for us in range(0, top + 1, 200):
        svg.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(us):.1f}" y2="{y(us):.1f}" stroke="#e5e5e5"/>'
        )
        svg.append(f'<text x="{LEFT - 8}" y="{y(us) + 4:.1f}" text-anchor="end">{us}</text>')
    svg.append(f'<text x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">µs</text>')
    for bits in (2, 4, 8, 16):
        svg.append(
            f'<text x="{x(bits):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{bits}</text>'
        )
    svg.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">nominal bits, mean of keys and values</text>'
    )
    lines = [
        ("Ebb", ours, "#c2410c", ""),
        ("best of others", peers, "#555", ""),
        ("codes alone at 4.42 TB/s", roof, "#999", "4 4"),
    ]
    for name, line, colour, dash in lines:
        path = " ".join(f"{x(b):.1f},{y(us):.1f}" for b, us in line)
        svg.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        if not dash:
            svg += [
                f'<circle cx="{x(b):.1f}" cy="{y(us):.1f}" r="3.5" fill="{colour}"/>'
                for b, us in line
            ]
        b, us = min(line, key=lambda point: abs(point[0] - 4))
        above = name == "best of others"
        svg.append(
            f'<text x="{x(b) + 6:.1f}" y="{y(us) + (-10 if above else 18):.1f}" fill="{colour}">{name}</text>'
        )
    svg.append("</svg>\n")
    open(out, "w").write("\n".join(svg))


if __name__ == "__main__":
    main()
