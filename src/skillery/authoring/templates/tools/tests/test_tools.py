"""`skillery test` runs these tests in a sandbox that mounts the skill."""

import unittest

from skills.__IMPORT__ import handler


class CountWords(unittest.TestCase):
    def test_words_are_counted_by_default(self):
        self.assertEqual(handler({"text": "to be"}), {"count": 2})

    def test_an_empty_text_has_no_lines(self):
        self.assertEqual(handler({"text": "", "by": "line"}), {"count": 0})


if __name__ == "__main__":
    unittest.main()
