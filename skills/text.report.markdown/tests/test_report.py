"""Run inside a sandbox that mounts the skill: python -m unittest discover."""
# ruff: noqa: PT009, PT027 - only unittest is there

import unittest

from skills.text.report.markdown import render_report


class Markdown(unittest.TestCase):
    def test_a_list_of_objects_is_a_table_with_numbers_to_the_right(self):
        text = render_report("T", [{"name": "a", "n": 1}, {"name": "b", "n": 2.5, "more": None}])
        expected = "# T\n\n| name | n | more |\n|---|---:|---|\n| a | 1 |  |\n| b | 2.5 | — |\n"
        self.assertEqual(text, expected)

    def test_an_object_has_its_values_first_and_a_section_for_each_part(self):
        text = render_report("T", {"rows_read": [1, 2], "ok": True, "empty": [], "in_depth": {"k": "v"}})
        self.assertIn("| ok | yes |\n| empty | \\[\\] |", text)
        self.assertIn("## Rows read\n\n- 1\n- 2\n", text)
        self.assertIn("## In depth\n\n| Field | Value |", text)

    def test_text_never_turns_into_markup(self):
        text = render_report("*T*", [{"a|b": "x | y\n<b>_z_</b> [l](u) `c`"}], intro="# no heading\n- no list\n1. no")
        self.assertIn("# \\*T\\*", text)
        self.assertIn("| x \\| y \\<b\\>\\_z\\_\\</b\\> \\[l\\](u) \\`c\\` |", text)
        self.assertIn("\\# no heading\n\\- no list\n1\\. no", text)

    def test_what_is_left_out_is_counted(self):
        self.assertIn("_… and 7 more rows._", render_report("T", [{"n": i} for i in range(10)], max_rows=3))
        self.assertIn("_… and 1 more entries._", render_report("T", [1, 2], max_rows=1))

    def test_columns_are_picked_in_order(self):
        self.assertIn("| b | a |", render_report("T", [{"a": 1, "b": 2}], columns=["b", "a"]))
        with self.assertRaisesRegex(ValueError, "columns are a, b"):
            render_report("T", [{"a": 1, "b": 2}], columns=["c"])

    def test_nothing_and_one_value_are_said_in_words(self):
        self.assertIn("_Nothing to show._", render_report("T", []))
        self.assertEqual(render_report("T", 42), "# T\n\n42\n")

    def test_deep_data_ends(self):
        data: object = "end"
        for _ in range(30):
            data = {"down": data}
        self.assertLess(render_report("T", data).count("#"), 40)


class Html(unittest.TestCase):
    def test_it_is_a_whole_page_with_everything_escaped(self):
        page = render_report("A & B", [{"<x>": "1", "$body": "<script>"}], format="html")
        self.assertTrue(page.startswith("<!doctype html>"))
        self.assertIn("<title>A &amp; B</title>", page)
        self.assertIn('<th class="number">&lt;x&gt;</th><th>$body</th>', page)
        self.assertNotIn("<script>", page)

    def test_an_unknown_format_says_which_there_are(self):
        with self.assertRaisesRegex(ValueError, "'markdown' or 'html'"):
            render_report("T", [], format="pdf")


if __name__ == "__main__":
    unittest.main()
