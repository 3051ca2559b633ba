"""`skillery test` runs these tests in a sandbox that mounts the skill."""

import unittest

from skills.__IMPORT__ import count, main


class Counting(unittest.TestCase):
    def test_upper_case_counts_as_lower_case(self):
        self.assertEqual(count("To be to", top=1)["top"], {"to": 2})

    def test_a_text_without_words_has_none(self):
        self.assertEqual(count(" ", top=3)["words"], 0)

    def test_a_negative_top_is_refused_with_the_remedy(self):
        with self.assertRaisesRegex(ValueError, "give 0 or more"):
            main({"text": "to be", "top": -1})


if __name__ == "__main__":
    unittest.main()
