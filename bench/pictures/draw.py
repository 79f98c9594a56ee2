#!/usr/bin/env python3
"""Draws the pictures of bench/RESULTS.md from the tables of that page.

`python3 bench/pictures/draw.py` writes the SVG files beside this script. With `--check` it writes nothing, and fails
if a file differs from what the tables say. A table is found by its first column's heading, a row by its first cell.
"""

import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "RESULTS.md"

# The same white panel as in docs/path.svg, so that the colours hold on light and dark pages.
STYLE = """
    .panel { fill: #ffffff; stroke: #b8c4d0 }
    .ours { fill: #1f7a5c; stroke: #1f7a5c }
    .other { fill: #3a6ea5; stroke: #3a6ea5 }
    .theirs { fill: #7d8a97; stroke: #7d8a97 }
    .grid { stroke: #dfe5ea }
    .axis { stroke: #7d8a97 }
    .goal { stroke: #b3541e; stroke-width: 1.6; stroke-dasharray: 5 3 }
    .curve { fill: none; stroke-width: 2 }
    .bar { stroke: none }
    .name { fill: #16202a }
    .strong { fill: #16202a; font-weight: 600 }
    .note { fill: #47545f; font-size: 12px }
    .warn { fill: #b3541e; font-size: 12px }
    .note, .warn { paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
"""


class Picture:
    """An SVG on a white panel. Lengths are pixels, y grows downwards."""

    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="13" role="img"'
            " font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif\""
            f' aria-label="{escape(title)}">',
            f"  <style>{STYLE}  </style>",
            f'  <rect class="panel" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        ]
        self.text(20, 28, title, "strong")

    def add(self, tag, style, **attributes):
        pairs = (f'{name.replace("_", "-")}="{number(value)}"' for name, value in attributes.items())
        self.parts.append(f'  <{tag} class="{style}" {" ".join(pairs)}/>')

    def text(self, x, y, text, style, anchor="start"):
        place = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"'
        self.parts.append(f'  <text class="{style}" {place}>{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, style):
        self.add("line", style, x1=x1, y1=y1, x2=x2, y2=y2)

    def bar(self, x, y, width, style):
        self.add("rect", f"bar {style}", x=x, y=y - 7, width=width, height=14, rx=2)

    def dot(self, x, y, style):
        self.add("circle", style, cx=x, cy=y, r=4.5)

    def legend(self, x, y, entries):
        """Dots with their names, one after the other."""
        for name, style in entries:
            self.dot(x, y - 4, style)
            self.text(x + 10, y, name, "note")
            x += 36 + 6.5 * len(name)

    def svg(self):
        return "\n".join([*self.parts, "</svg>", ""])


class Scale:
    """Values from `low` to `high` on the pixels from `start` to `end`."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = low, high, start, end

    def at(self, value):
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def draw_below(self, picture, top, bottom, ticks, unit=""):
        """Vertical grid lines, and their values below them."""
        for tick in ticks:
            picture.line(self.at(tick), top, self.at(tick), bottom, "grid")
            picture.text(self.at(tick), bottom + 17, f"{tick:,}{unit}", "note", "middle")


def number(value):
    """A length as SVG has it, with at most one decimal; other values as they are."""
    return f"{round(value, 1):g}" if isinstance(value, (int, float)) else value


def table(heading):
    """The rows of the table whose first column has this heading, each a dictionary by the columns' headings."""
    lines = iter(RESULTS.read_text(encoding="utf-8").splitlines())
    header = next((cells(line) for line in lines if cells(line)[:1] == [heading]), None)
    if header is None:
        sys.exit(f"{RESULTS}: no table whose first column is {heading!r}; name its heading in {__file__}")
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(header, cells(line))))
    return rows


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def values(cell):
    """The numbers in a cell, in order. A comma between three digits belongs to the number."""
    return [float(text.replace(",", "")) for text in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", cell)]


def gpus_given_out():
    rows = table("list of pods")
    policies = {"best fit": "theirs", "FGD": "other", "Plimsoll": "ours"}
    picture = Picture(760, 96 + 28 * len(rows), "GPUs given out when pods have asked for 100% of them: more is better")
    picture.legend(150, 52, policies.items())
    scale, bottom = Scale(84, 98, 150, 700), 64 + 28 * len(rows)
    scale.draw_below(picture, 62, bottom, range(84, 99, 2), "%")
    for place, row in enumerate(rows):
        y = 78 + 28 * place
        shares = {policy: values(row[policy])[0] for policy in policies}
        picture.text(136, y + 4, row["list of pods"].strip("*"), "name", "end")
        picture.line(scale.at(min(shares.values())), y, scale.at(max(shares.values())), y, "axis")
        for policy, style in policies.items():
            picture.dot(scale.at(shares[policy]), y, style)
        picture.text(scale.at(shares["Plimsoll"]) + 9, y + 4, f'{shares["Plimsoll"]:.2f}', "note")
    return picture


def hot_minutes():
    rows = table("policy")
    bottom = 60 + 24 * len(rows)
    picture = Picture(900, bottom + 34, "Node-minutes above 80% CPU, divided by those of crane's plugin: less is better")
    for cell, start, note in [("S40", 270, "40% mean use (S40)"), ("S55", 580, "55% mean use (S55)")]:
        scale = Scale(0, 2, start, start + 230)
        picture.text(start, 52, note, "strong")
        scale.draw_below(picture, 60, bottom, [0, 0.5, 1, 1.5, 2])
        picture.line(scale.at(1), 60, scale.at(1), bottom, "axis")
        for place, row in enumerate(rows):
            draw_hot_minutes(picture, scale, 74 + 24 * place, row, cell, is_reference=place == 0)
    for place, row in enumerate(rows):
        name = row["policy"].replace("*", "").removesuffix(", minutes")
        picture.text(256, 78 + 24 * place, name, "strong" if "Plimsoll" in name else "name", "end")
    return picture


def draw_hot_minutes(picture, scale, y, row, cell, is_reference):
    found = values(row[cell])
    if not found:
        picture.text(scale.start + 6, y + 4, "not run", "note")
        return
    ratio = 1.0 if is_reference else found[0]
    picture.bar(scale.start, y, scale.at(ratio) - scale.start, "ours" if "Plimsoll" in row["policy"] else "theirs")
    label = scale.at(ratio) + 6
    picture.text(label, y + 4, f"{ratio:.2f}", "note")
    if len(found) > 1:
        picture.text(label + 32, y + 4, f"pods wait {found[1]:g} min", "warn")


def cost_by_nodes():
    rows = table("µs")
    sizes = [100, 1000, 5000]
    picture = Picture(870, 316, "CPU of a call by the number of nodes, µs: less is better")
    for row, verb, start in zip(rows, ["Filter", "Prioritize"], [64, 484]):
        across, up = Scale(0, 5000, start, start + 260), Scale(0, 800, 256, 66)
        picture.text(start, 52, verb, "strong")
        for tick in range(0, 801, 200):
            picture.line(start, up.at(tick), start + 260, up.at(tick), "grid")
            picture.text(start - 8, up.at(tick) + 4, str(tick), "note", "end")
        across.draw_below(picture, 252, 256, sizes)
        picture.text(start + 130, 294, "nodes", "note", "middle")
        measured = [values(row[f"{size:,} nodes"]) for size in sizes]
        for column, name, style in [(1, "echo", "theirs"), (0, "Plimsoll", "ours")]:
            points = [(across.at(size), up.at(found[column])) for size, found in zip(sizes, measured)]
            path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
            picture.parts.append(f'  <polyline class="curve {style}" points="{path}"/>')
            for x, y in points:
                picture.dot(x, y, style)
            picture.text(points[-1][0] + 10, points[-1][1] + 4, f"{name} {measured[-1][column]:g}", "name")
    return picture


# The most that a row of the table of ratios may be, where there is a goal.
RATIO_GOALS = {"all nodes pass": 1.0, "GPU pods, load entry": 1.2, "GPU pods, GPU entry": 1.2}


def echo_ratio():
    rows = table("5,000 names")
    bottom = 76 + 44 * len(rows)
    picture = Picture(860, bottom + 30, "CPU of a call divided by the echo's, 5,000 nodes: a dot for each run, less is better")
    picture.legend(196, 52, [("third machine", "ours"), ("second machine", "other")])
    picture.line(466, 48, 494, 48, "goal")
    picture.text(502, 52, "goal", "note")
    for verb, start in [("Filter", 196), ("Prioritize", 536)]:
        scale = Scale(0.4, 1.4, start, start + 290)
        picture.text(start, 74, verb, "strong")
        scale.draw_below(picture, 82, bottom, [0.4, 0.6, 0.8, 1.0, 1.2, 1.4])
        picture.line(scale.at(1), 82, scale.at(1), bottom, "axis")
        for place, row in enumerate(rows):
            y = 104 + 44 * place
            if row[verb] and row["5,000 names"] in RATIO_GOALS:
                goal = scale.at(RATIO_GOALS[row["5,000 names"]])
                picture.line(goal, y - 18, goal, y + 18, "goal")
            for ratio in values(row[verb]):
                picture.dot(scale.at(ratio), y - 8, "ours")
            for ratio in values(row[f"{verb}, second machine"]):
                picture.dot(scale.at(ratio), y + 8, "other")
    for place, row in enumerate(rows):
        picture.text(182, 108 + 44 * place, row["5,000 names"], "name", "end")
    return picture


def filter_calls():
    rows = table("how the annotator writes")
    bottom = 48 + 28 * len(rows)
    picture = Picture(760, bottom + 34, "Filter calls a minute of 100 waiting pods, 5,000 nodes: less is better")
    scale = Scale(0, 1000, 270, 700)
    scale.draw_below(picture, 44, bottom, range(0, 1001, 200))
    for place, row in enumerate(rows):
        y, hovering = 62 + 28 * place, row["nodes that hover around a limit"]
        calls = values(row["Filter calls"])[0]
        suffix = "" if hovering == "none" else f", {hovering} nodes at a limit"
        picture.text(256, y + 4, row["how the annotator writes"] + suffix, "name", "end")
        picture.bar(scale.start, y, scale.at(calls) - scale.start, "ours")
        picture.text(scale.at(calls) + 6, y + 4, f"{calls:g}", "note")
    picture.line(scale.at(600), 44, scale.at(600), bottom, "goal")
    picture.text(scale.at(600) + 6, bottom - 4, "goal: 600", "warn")
    return picture


PICTURES = {
    "gpus-given-out.svg": gpus_given_out,
    "hot-minutes.svg": hot_minutes,
    "cost-by-nodes.svg": cost_by_nodes,
    "echo-ratio.svg": echo_ratio,
    "filter-calls.svg": filter_calls,
}


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    stale = []
    for name, draw in PICTURES.items():
        path, svg = FOLDER / name, draw().svg()
        if not check:
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != svg:
            stale.append(name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what {RESULTS.name} says; run python3 bench/pictures/draw.py")


if __name__ == "__main__":
    main()
