"""Run inside a sandbox that mounts the skill: python -m unittest discover."""
# ruff: noqa: PT009, PT027 - only unittest is there

import unittest

from skills.text.csv.query import Query, query_csv

SALES = """city,kind,amount,day,unit price
Oslo,tea,10,2024-01-05,2.5
Rome,coffee,n/a,2024-02-01,3
Oslo,coffee,2.5,2024-02-10,3
Bonn,tea,,2024-03-01,2.5
Rome,tea,30,2024-03-02,40
"""


def cities(where):
    return [row["city"] for row in query_csv(SALES, where=where)]


class Where(unittest.TestCase):
    def test_numbers_compare_as_numbers_and_other_cells_match_nothing(self):
        self.assertEqual(cities("amount > 9"), ["Oslo", "Rome"])
        self.assertEqual(cities("amount != 10"), ["Oslo", "Rome"])

    def test_texts_compare_as_texts(self):
        self.assertEqual(cities("day >= '2024-02-10' and kind = \"tea\""), ["Bonn", "Rome"])

    def test_and_binds_tighter_than_or(self):
        self.assertEqual(cities("city = 'Bonn' or city = 'Oslo' and kind = 'tea'"), ["Oslo", "Bonn"])
        self.assertEqual(cities("(city = 'Bonn' or city = 'Oslo') and kind = 'coffee'"), ["Oslo"])

    def test_membership_null_and_search(self):
        self.assertEqual(cities("city in ('Bonn', 'Paris')"), ["Bonn"])
        self.assertEqual(cities("city not in ('Bonn', 'Rome')"), ["Oslo", "Oslo"])
        self.assertEqual(cities("amount is null"), ["Bonn"])
        self.assertEqual(cities("amount is not null and kind contains 'COFF'"), ["Rome", "Oslo"])
        self.assertEqual(cities("not city startswith 'o' and city not endswith 'e'"), ["Bonn"])

    def test_two_columns_compare_as_numbers_where_both_are(self):
        self.assertEqual(cities("amount < `unit price`"), ["Oslo", "Bonn", "Rome"])

    def test_quotes_are_doubled(self):
        rows = query_csv("name\nO'Hara\n", where="name = 'O''Hara'")
        self.assertEqual(rows, [{"name": "O'Hara"}])

    def test_what_is_wrong_is_said_with_its_place(self):
        wrong = {
            "ammount > 1": "did you mean amount",
            "amount >": "character 9.*expected is a column",
            "amount ! 1": "cannot read '! 1'",
            "amount > 1 city": "expected is 'and'",
            "(amount > 1": r"expected is '\)'",
            "amount": "expected is one of",
            "amount not > 1": "expected is one of",
            "not " * 60 + "amount > 1": "nested",
            "__import__('os')": "no column",
        }
        for where, message in wrong.items():
            with self.subTest(where=where), self.assertRaisesRegex(ValueError, message):
                query_csv(SALES, where=where)


class Results(unittest.TestCase):
    def test_groups_are_aggregated(self):
        rows = query_csv(
            SALES,
            group_by=["city"],
            aggregate={"n": "count()", "known": "count(amount)", "sum": "sum(amount)", "kinds": "distinct(kind)"},
            sort=["city"],
        )
        self.assertEqual(rows[0], {"city": "Bonn", "n": 1, "known": 0, "sum": 0, "kinds": 1})
        self.assertEqual(rows[1], {"city": "Oslo", "n": 2, "known": 2, "sum": 12.5, "kinds": 2})

    def test_everything_is_one_group_without_group_by(self):
        rows = query_csv(SALES, aggregate={"from": "min(day)", "to": "max(day)", "mean": "mean(amount)"})
        self.assertEqual(rows, [{"from": "2024-01-05", "to": "2024-03-02", "mean": 14.166667}])
        self.assertEqual(query_csv(SALES, where="amount > 99", aggregate={"n": "count()"}), [{"n": 0}])

    def test_sums_of_cents_have_no_tail(self):
        self.assertEqual(query_csv("n\n0.1\n0.2\n", aggregate={"n": "sum(n)"}), [{"n": 0.3}])

    def test_numbers_sort_before_texts_and_empty_cells_last_both_ways(self):
        up = [row["amount"] for row in query_csv(SALES, sort=["amount"])]
        down = [row["amount"] for row in query_csv(SALES, sort=["-amount"])]
        self.assertEqual(up, ["2.5", "10", "30", "n/a", ""])
        self.assertEqual(down, ["30", "10", "2.5", "n/a", ""])

    def test_ties_are_sorted_by_the_next_column(self):
        rows = query_csv(SALES, sort=["kind", "-city"], select=["city"])
        self.assertEqual([row["city"] for row in rows], ["Rome", "Oslo", "Rome", "Oslo", "Bonn"])

    def test_the_first_of_many_rows_are_found(self):
        lines = ["n\n", *(f"{(i * 7919) % 50_021}\n" for i in range(50_021))]
        self.assertEqual([row["n"] for row in query_csv(lines, sort=["-n"], limit=3)], ["50020", "50019", "50018"])

    def test_a_limit_stops_reading(self):
        endless = (line for line in ["n\n", *("1\n" for _ in range(1000)), None])
        self.assertEqual(len(query_csv(endless, limit=2)), 2)

    def test_malformed_rows_are_left_out_and_counted(self):
        query = Query("a,b\n1,2\n3\n")
        self.assertEqual((list(query.rows()), query.source.malformed), ([["1", "2"]], 1))

    def test_bad_requests_say_what_to_do(self):
        wrong = [
            ({"aggregate": {"x": "median(amount)"}}, "one of sum, mean"),
            ({"aggregate": {"x": "sum()"}}, "needs a column"),
            ({"aggregate": {"x": "sum(amont)"}}, "did you mean amount"),
            ({"group_by": ["city"], "aggregate": {"city": "count()"}}, "named twice"),
            ({"sort": ["-citty"]}, "did you mean city"),
            ({"select": ["town"]}, "columns are city"),
            ({"limit": -1}, "limit is -1"),
        ]
        for options, message in wrong:
            with self.subTest(**options), self.assertRaisesRegex(ValueError, message):
                query_csv(SALES, **options)


if __name__ == "__main__":
    unittest.main()
