#!/usr/bin/env python3
"""Tables of the results pages, made from the CSV files beside them.

    benches/results/table.py            writes every table anew
    benches/results/table.py --check    fails if a page and its CSV files disagree

A table stands in a page between `<!-- table FOLDER/NAME -->` and `<!-- end -->`. What it shows is
a section of FOLDER/tables.txt, a directive a line:

    [NAME] throughput.csv                   the CSV files, one read after the other
    where kv = prog* | static               rows that are kept, and their order; also !=
    tag rotated kv *rotate=k* = yes         a new field: a word where another one matches, else ""
    cut kv ,protect=f16                     text that is left out of a field
    say kv prog* = 16 to 2 bit              another word for a value
    key Work = {n} × {in} / {out}           a column; rows with equal keys become one
    val Output tokens/s = {out_tok_s:,.0f}  a column; of several rows, the range
    pivot {kv} = {us:.0f}                   a column for each {kv}
    rival best kv int4* | int2* = bits kl   new fields: best_kv, best_bits, ... of the row with the
                                            least `kl` among those that match, are of the same
                                            {file} (as reworded) and have no more `bits`;
                                            best_share is the row's own `kl` over that one's,
                                            best_times the reverse

Templates are Python's; fields that read as numbers are numbers. A cell without a number is "–". A
file that is not there has no rows. {file} is a file's name without its ending. Of ebb-load's
summary.json a row is a stage, whose nested fields are named like ttft_ms_p50.

A row of another engine than Ebb says in its own fields what can be asked of it: version, kernel,
command and date, and raw, the file beside it that holds what the command printed.
"""

import csv
import fnmatch
import json
import math
import pathlib
import re
import sys

RESULTS = pathlib.Path(__file__).resolve().parent
ROOT = RESULTS.parents[1]
PROOF = ("version", "kernel", "command", "date", "raw")
BLOCK = re.compile(r"<!-- table (?P<folder>[\w-]+)/(?P<name>[\w-]+) -->\n(.*?)<!-- end -->", re.S)


class Mistake(Exception):
    """A directive that cannot be followed."""


def number(text):
    """Commits may look like numbers with exponents: those need a sign or a point."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d*\.?\d+(e[-+]\d+)?|NaN", text) else text


def flat(value, name=""):
    """Nested values of JSON as fields: ttft_ms_p50."""
    if not isinstance(value, dict):
        return {} if value is None else {name: str(value)}
    parts = (flat(v, f"{name}_{k}" if name else k) for k, v in value.items())
    return {k: v for part in parts for k, v in part.items()}


def read(folder, names):
    rows = []
    for path in (folder / name for name in names):
        if not path.exists():
            continue
        with open(path, newline="") as file:
            if path.suffix == ".json":
                found = [flat(stage) for stage in json.load(file)["stages"]]
            else:
                found = list(csv.DictReader(file))
        rows += [{**row, "file": path.stem} for row in found]
    fields = dict.fromkeys((field for row in rows for field in row), "")
    return [{**fields, **row} for row in rows]


def cell(template, row):
    """The template filled in; None where a field is missing or is no number."""
    fields = {name: number(text) for name, text in row.items()}
    used = (v for k, v in fields.items() if f"{{{k}" in template)
    if any(isinstance(v, float) and math.isnan(v) for v in used):
        return None
    try:
        return template.format_map(fields).strip()
    except (KeyError, ValueError):
        return None


def span(texts):
    """One text for several: the range of numbers, or each once."""
    texts = list(dict.fromkeys(t for t in texts if t))
    values = [number(t.replace(",", "")) for t in texts]
    if len(texts) > 1 and all(isinstance(v, (int, float)) for v in values):
        order = sorted(range(len(texts)), key=lambda i: values[i])
        return f"{texts[order[0]]}–{texts[order[-1]]}"
    return ", ".join(texts) or "–"


def place(text, patterns):
    """The first pattern that matches, by its number."""
    return next((i for i, p in enumerate(patterns) if fnmatch.fnmatchcase(text, p)), None)


class Spec:
    """A section's directives."""

    def __init__(self, files, lines):
        self.files, self.where, self.tags, self.cuts, self.say = files.split(), [], [], [], {}
        self.keys, self.values, self.pivots, self.rivals = [], [], [], []
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "cut":
                self.cuts.append(rest.split(" ", 1))
                continue
            operator = " != " if word == "where" and " != " in rest else " = "
            left, found, right = f"{rest} ".partition(operator)
            right = right.strip()
            if not found:
                raise Mistake(f"no `{operator.strip()}` in `{line}`")
            if word == "where":
                self.where.append((left, operator == " = ", re.split(r" *\| *", right)))
            elif word == "tag":
                self.tags.append((*left.split(" ", 2), right))
            elif word == "rival":
                new, field, patterns = left.split(" ", 2)
                self.rivals.append((new, field, re.split(r" *\| *", patterns), *right.split()))
            elif word == "say":
                field, _, value = left.partition(" ")
                self.say[field, value] = right
            elif word == "key":
                self.keys.append((left, right))
            elif word == "val":
                self.values.append((left, right))
            elif word == "pivot":
                self.pivots.append((left, right))
            else:
                raise Mistake(f"no directive is called `{word}`")
        if not self.keys or not (self.values or self.pivots):
            raise Mistake("a table has keys, and values or a pivot")

    def choose(self, rows):
        for field, keep, patterns in self.where:
            if rows and field not in rows[0]:
                raise Mistake(f"the CSV has no field `{field}`")
            rows = [r for r in rows if (place(r[field], patterns) is not None) == keep]
        order = [(field, patterns) for field, keep, patterns in self.where if keep]
        rows.sort(key=lambda row: [place(row[field], patterns) for field, patterns in order])
        return [self.reword(row) for row in rows]

    def compare(self, rows, new, field, patterns, bits, loss):
        """Each row with the fields of the best other one that may have its width."""
        others = [row for row in rows if place(row[field], patterns) is not None]
        for row in rows:
            model = self.word("file", row["file"])
            fit = [
                other
                for other in others
                if self.word("file", other["file"]) == model
                and float(other[bits]) <= float(row[bits])
            ]
            best = min(fit, key=lambda other: float(other[loss]), default={})
            row.update({f"{new}_{name}": best.get(name, "") for name in (field, bits, loss)})
            own, least = float(row[loss]), float(best[loss]) if best else math.nan
            row[f"{new}_share"] = f"{own / least:.6f}" if least > 0 else "NaN"
            row[f"{new}_times"] = f"{least / own:.6f}" if own > 0 and best else "NaN"

    def reword(self, row):
        for new, field, pattern, text in self.tags:
            row.setdefault(new, "")
            if place(row[field], [pattern]) == 0:
                row[new] = text
        for field, text in self.cuts:
            row[field] = row[field].replace(text, "")
        return {field: self.word(field, text) for field, text in row.items()}

    def word(self, field, text):
        said = (w for (f, p), w in self.say.items() if f == field and place(text, [p]) == 0)
        return next(said, text)

    def render(self, folder):
        found = read(folder, self.files)
        if not found:
            return f"Not measured yet: `{'`, `'.join(self.files)}`.\n"
        for rival in self.rivals:
            self.compare(found, *rival)
        rows = self.choose(found)
        if not rows:
            raise Mistake(f"no rows are left of {' '.join(self.files)}")
        grouped, columns = {}, dict.fromkeys(name for name, _ in self.values)
        for row in rows:
            key = tuple(cell(template, row) or "–" for _, template in self.keys)
            cells = grouped.setdefault(key, {})
            pivots = [(cell(column, row), template) for column, template in self.pivots]
            for name, template in self.values + pivots:
                columns.setdefault(name)
                cells.setdefault(name, []).append(cell(template, row))
        head = [name for name, _ in self.keys] + list(columns)
        lines = [head, ["---"] * len(head)]
        for key, cells in grouped.items():
            lines.append([*key, *(span(cells.get(name, [])) for name in columns)])
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return table.replace("| --- ", "|---").replace("--- |\n", "---|\n", 1)


def section(folder, name):
    """A table's directives in its folder."""
    lines = (folder / "tables.txt").read_text().splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("[")]
    for head, end in zip(heads, [*heads[1:], len(lines)]):
        found, _, files = lines[head].partition("] ")
        if found == f"[{name}":
            return Spec(files, [line for line in lines[head + 1 : end] if line.strip()])
    raise Mistake(f"{folder.name}/tables.txt has no [{name}]")


def renew(text):
    """A page with its tables made anew."""

    def table(match):
        folder = RESULTS / match["folder"]
        head = f"<!-- table {match['folder']}/{match['name']} -->"
        return f"{head}\n{section(folder, match['name']).render(folder)}<!-- end -->"

    return BLOCK.sub(table, text)


def unproven(path):
    """Rows of other engines that do not say how they came about."""
    with open(path, newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            if row.get("engine", "ebb").lower() == "ebb":
                continue
            missing = [field for field in PROOF if not (row.get(field) or "").strip()]
            if missing:
                yield f"line {number} ({row['engine']}) has no {', '.join(missing)}"
            elif not (path.parent / row["raw"]).is_file():
                yield f"line {number} ({row['engine']}): no file {row['raw']} is beside it"


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit("usage: table.py [--check]")
    wrong = []
    for path in sorted(RESULTS.rglob("*.csv")):
        for what in unproven(path):
            sys.exit(f"{path.relative_to(ROOT)}: {what}")
    for page in [*sorted(RESULTS.rglob("*.md")), ROOT / "README.md"]:
        name = str(page.relative_to(ROOT))
        text = page.read_text()
        try:
            new = renew(text)
        except (Mistake, OSError) as error:
            sys.exit(f"{name}: {error}")
        if new != text:
            wrong.append(name)
            if not arguments:
                page.write_text(new)
    if arguments and wrong:
        sys.exit(
            f"table.py: {', '.join(wrong)}: not what the CSV files say; run it without --check"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
