"""Run inside a sandbox that mounts the skill: python -m unittest discover."""
# ruff: noqa: PT009, PT027 - only unittest is there

import unittest

from skills.text.csv.profile import SAMPLE, profile_csv, sniff_delimiter


def column(report, name):
    return next(each for each in report["columns"] if each["name"] == name)


class Profile(unittest.TestCase):
    def test_numbers_have_range_mean_and_spread(self):
        n = column(profile_csv("n\n1\n2\n3\n4\n"), "n")
        self.assertEqual((n["type"], n["min"], n["max"], n["mean"]), ("integer", 1, 4, 2.5))
        self.assertAlmostEqual(n["stddev"], 1.118034)

    def test_each_type_is_told(self):
        report = profile_csv("i,f,b,d,t,x,e\n1,1.5,yes,2024-02-29,2024-02-29T10:00:00,007,\n")
        types = [each["type"] for each in report["columns"]]
        self.assertEqual(types, ["integer", "number", "boolean", "date", "datetime", "text", "empty"])

    def test_a_day_that_does_not_exist_is_text(self):
        self.assertEqual(column(profile_csv("d\n2023-02-29\n"), "d")["type"], "text")

    def test_a_few_misfits_do_not_hide_the_type(self):
        n = column(profile_csv("n\n" + "5\n" * 99 + "five\n"), "n")
        self.assertEqual((n["type"], n["mismatches"], n["mismatch_examples"]), ("integer", 1, ["five"]))

    def test_rows_of_another_length_are_counted_with_their_line(self):
        report = profile_csv("a,b\n1,2\n3\n4,5,6\n7,8\n\n")
        self.assertEqual((report["rows"], report["malformed_rows"], report["blank_lines"]), (2, 2, 1))
        self.assertEqual(report["malformed_examples"][0], {"line": 3, "cells": 1, "expected": 2})

    def test_delimiters_are_sniffed_past_quoted_ones(self):
        self.assertEqual(sniff_delimiter(["name;price\n", '"a,b,c";1,5\n', '"d,e";2,5\n']), ";")
        self.assertEqual(sniff_delimiter(["a\tb\n", "1\t2\n"]), "\t")
        self.assertEqual(sniff_delimiter(["only\n", "one\n"]), ",")

    def test_quoted_line_ends_stay_in_their_cell(self):
        self.assertEqual(profile_csv('a,b\n"x\ny",1\n')["rows"], 1)

    def test_column_names_become_unique(self):
        report = profile_csv("a,a,\n1,2,3\n")
        self.assertEqual([each["name"] for each in report["columns"]], ["a", "a_2", "column_3"])
        self.assertEqual(len(report["warnings"]), 2)

    def test_without_a_header_the_first_row_counts(self):
        report = profile_csv("1,2\n3,4\n", has_header=False)
        self.assertEqual((report["rows"], report["columns"][0]["name"]), (2, "column_1"))

    def test_distinct_values_past_the_limit_are_a_lower_bound(self):
        n = column(profile_csv(["n\n", *(f"{i}\n" for i in range(12_000))]), "n")
        self.assertEqual((n["distinct"], n["distinct_is_exact"], n["max"]), (10_000, False, 11_999))

    def test_numbers_that_overflow_stay_out_of_the_mean(self):
        n = column(profile_csv("n\n1e999\n1e300\n"), "n")
        self.assertEqual(n["type"], "text")

    def test_an_empty_csv_says_so(self):
        with self.assertRaisesRegex(ValueError, "empty"):
            profile_csv("")

    def test_a_quote_that_is_never_closed_says_where(self):
        with self.assertRaisesRegex(ValueError, "line .* quote"):
            profile_csv('a,b\n"' + "x" * (1 << 20) + "\n")

    def test_the_sample_is_as_described(self):
        with SAMPLE.open(encoding="utf-8", newline="") as lines:
            report = profile_csv(lines)
        self.assertEqual((report["rows"], report["malformed_rows"], report["blank_lines"]), (4993, 8, 1))
        self.assertEqual(column(report, "unit_price")["type"], "number")
        self.assertEqual(column(report, "ordered_on")["type"], "date")
        self.assertGreater(column(report, "ordered_on")["mismatches"], 0)


if __name__ == "__main__":
    unittest.main()
