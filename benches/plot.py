"""Line charts as SVG, for the results pages; needs nothing but Python.

A `Chart` is one image of panels side by side. A `Panel` maps values to pixels and draws axes,
lines and labels; `lin` and `log` are its two scales. The callers are `plot_*.py`.
"""

import math

ACCENT, INK, SOFT, SECOND = "#c2410c", "#555", "#999", "#2563eb"


def lin(low, high):
    """Share of the way from `low` to `high`."""
    return lambda value: (value - low) / (high - low)


def log(low, high):
    """The same by factors."""
    return lambda value: math.log(value / low) / math.log(high / low)


def round_step(most, steps=6):
    """The least of 1, 2 or 5 times a power of ten that needs at most `steps` of itself."""
    power = 10.0 ** math.floor(math.log10(most / steps))
    return next(f * power for f in (1, 2, 5, 10) if most / (f * power) <= steps)


class Panel:
    """A frame in pixels: (left, top, right, bottom). Scales go from 0 to 1."""

    def __init__(self, frame, x_scale, y_scale, title):
        self.left, self.top, self.right, self.bottom = frame
        self.x_scale, self.y_scale = x_scale, y_scale
        self.svg = []
        self.text(self.left, self.top - 20, title, size=14)

    def x(self, value):
        return self.left + self.x_scale(value) * (self.right - self.left)

    def y(self, value):
        return self.bottom - self.y_scale(value) * (self.bottom - self.top)

    def text(self, x, y, text, anchor="start", colour="#333", size=12):
        style = f'text-anchor="{anchor}" fill="{colour}" font-size="{size}"'
        self.svg.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{text}</text>')

    def y_axis(self, values, label=""):
        for value in values:
            at, ends = self.y(value), f'x1="{self.left}" x2="{self.right}"'
            self.svg.append(f'<line {ends} y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e5e5"/>')
            self.text(self.left - 8, at + 4, f"{value:g}", anchor="end")
        self.text(self.left - 8, self.top - 13, label, anchor="end")

    def x_axis(self, values, label):
        for value in values:
            self.text(self.x(value), self.bottom + 20, f"{value:,}", anchor="middle")
        self.text((self.left + self.right) / 2, self.bottom + 40, label, anchor="middle")

    def line(self, points, colour, dash=""):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        self.svg.append(f'<polyline points="{path}" {style}/>')

    def dots(self, points, colour):
        for x, y in points:
            at = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}"'
            self.svg.append(f'<circle {at} r="3.5" fill="{colour}"/>')

    def legend(self, names):
        """(text, colour) pairs, one below the other in the upper right corner."""
        for row, (text, colour) in enumerate(names):
            self.text(self.right - 6, self.top + 14 + 16 * row, text, anchor="end", colour=colour)


def chart(path, width, height, panels):
    """Writes the panels as one image."""
    font = 'font-family="system-ui, sans-serif"'
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for panel in panels:
        svg += panel.svg
    with open(path, "w") as file:
        file.write("\n".join([*svg, "</svg>\n"]))
