#!/usr/bin/env python3
"""The checks of this folder, the tables of results and the plots find what they are for."""

import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lint"), str(ROOT / "benches/results"), str(ROOT / "benches")]

import columns  # noqa: E402
import paths  # noqa: E402
import plot  # noqa: E402
import table  # noqa: E402


class Columns(unittest.TestCase):
    def wide(self, line, ending):
        return [number for number, _ in columns.too_wide(f"ok\n{line}\n", ending)]

    def test_wide_lines_are_found_and_what_cannot_be_broken_is_not(self):
        words = "word " * 30
        self.assertEqual(self.wide(words, ".rs"), [2])
        self.assertEqual(self.wide("x" * 100, ".rs"), [])
        self.assertEqual(self.wide("// https://example.com/" + "x" * 100, ".rs"), [])
        self.assertEqual(self.wide(f"| {words} |", ".md"), [])
        self.assertEqual(self.wide(f"//! | {words} |", ".rs"), [])
        self.assertEqual(self.wide(f"| {words} |", ".py"), [2])
        self.assertEqual(self.wide(f"    {words}", ".md"), [2])
        self.assertEqual([*columns.too_wide("// @generated\n" + words, ".rs")], [])


class Paths(unittest.TestCase):
    def test_missing_files_and_places_are_found(self):
        page = ROOT / "README.md"
        self.assertEqual([*paths.dead_links(page, "[a](benches) [b](https://x.y/z)")], [])
        self.assertEqual(len([*paths.dead_links(page, "[a](nowhere.md) [b](#no-such-place)")]), 2)
        self.assertEqual([*paths.missing_paths("`tests/lint/{columns,paths}.py`, `run`")], [])
        self.assertEqual([*paths.missing_paths("`tests/lint/run`, beside it `paths.py`")], [])
        self.assertEqual(len([*paths.missing_paths("`tests/lint/nothing.py` and `--flag`")]), 1)
        self.assertEqual(paths.spread("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"])

    def test_headings_are_places(self):
        self.assertEqual(paths.places('# Two words, `code`\n<a name="x">'), {"two-words-code", "x"})


class Tables(unittest.TestCase):
    CSV = "kv,n,us,note\na,1,10.4,\nb,1,NaN,\na,1,12.6,x\na,2,3,\n"

    def render(self, directives, csv=CSV):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "rows.csv").write_text(csv)
            (folder / "tables.txt").write_text(f"[one] rows.csv\n{directives}\n[two] none.csv\n")
            return table.section(folder, "one").render(folder)

    def test_equal_keys_become_a_range_and_no_number_a_dash(self):
        self.assertEqual(
            self.render("where kv = b | a\nwhere n = 1\nkey KV = {kv}\nval Time = {us:.0f}"),
            "| KV | Time |\n|---|---|\n| b | – |\n| a | 10–13 |\n",
        )

    def test_pivots_words_tags_and_cuts(self):
        directives = "where kv != b\ntag far n 2 = !\ncut kv a\nsay kv = A\n"
        directives += "key KV = {kv}{far}\npivot n={n} = {us:.0f}"
        self.assertEqual(
            self.render(directives),
            "| KV | n=1 | n=2 |\n|---|---|---|\n| A | 10–13 | – |\n| A! | – | 3 |\n",
        )

    def test_a_rival_is_the_best_of_its_model_with_no_more_bits(self):
        csv = "kv,bits,kl\na,4,8\nb,4,2\nb2,3,5\nb3,5,1\nc,2,1\n"
        directives = "rival best kv b* = bits kl\nwhere kv = a | c\nkey KV = {kv}\n"
        self.assertEqual(
            self.render(directives + "val Share = {best_share:.1f} of {best_kv}, {best_bits}", csv),
            "| KV | Share |\n|---|---|\n| a | 4.0 of b, 4 |\n| c | – |\n",
        )
        self.assertIn("| a | 0.2 |", self.render(directives + "val T = {best_times:.1f}", csv))

    def test_mistakes_are_named(self):
        for directives in ("key KV = {kv}", "where x = 1\nkey A = {kv}\nval B = {n}", "sort kv"):
            with self.assertRaises(table.Mistake):
                self.render(directives)

    def test_rows_of_other_engines_say_how_they_came_about(self):
        head = "engine,version,kernel,command,date,raw\n"
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "peers.csv"

            def wrong(row):
                path.write_text(head + row + "\n")
                return [*table.unproven(path)]

            full = "vLLM,0.26,FlashAttention 3,vllm bench,2026-11-25,"
            self.assertEqual(wrong("ebb,,,,,"), [])
            self.assertEqual(len(wrong("vLLM,0.26,,,2026-11-25,raw.txt")), 1)
            self.assertIn("kernel, command", wrong("vLLM,0.26,,,2026-11-25,raw.txt")[0])
            self.assertEqual(len(wrong(full)), 1)
            self.assertEqual(len(wrong(full + "raw.txt")), 1)
            (path.parent / "raw.txt").write_text("1.5 s")
            self.assertEqual(wrong(full + "raw.txt"), [])
            path.write_text("engine,tok_s\nllama.cpp,102\n")
            self.assertEqual(len([*table.unproven(path)]), 1)

    def test_a_page_that_was_changed_by_hand_is_noticed(self):
        page = (ROOT / "benches/results/h200/README.md").read_text()
        self.assertEqual(table.renew(page), page)
        self.assertNotEqual(table.renew(page.replace("4.01", "3.01")), page.replace("4.01", "3.01"))

    def test_a_commit_is_no_number(self):
        self.assertEqual(
            [table.number(t) for t in ("57e1234", "1e-3", "12")], ["57e1234", 1e-3, 12]
        )


class Plots(unittest.TestCase):
    def test_a_chart_is_well_formed_and_within_its_frame(self):
        panel = plot.Panel((10, 30, 110, 80), plot.log(2, 8), plot.lin(0, 4), "title")
        panel.y_axis([0, 4], "y")
        panel.x_axis([2, 4, 8], "x")
        panel.line([(2, 0), (4, 2), (8, 4)], plot.ACCENT)
        with tempfile.NamedTemporaryFile(suffix=".svg") as file:
            plot.chart(file.name, 120, 120, [panel])
            xml.etree.ElementTree.parse(file.name)
        self.assertIn("10.0,80.0 60.0,55.0 110.0,30.0", "".join(panel.svg))
        self.assertEqual(plot.round_step(0.0047), 0.001)


if __name__ == "__main__":
    unittest.main()
