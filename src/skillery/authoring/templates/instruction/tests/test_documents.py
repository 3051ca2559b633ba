"""`skillery test` runs these tests in a sandbox that mounts the skill."""

import re
import unittest
from pathlib import Path

SKILL = Path(__file__).parents[1]


class Documents(unittest.TestCase):
    def test_each_link_leads_to_a_file_of_the_skill(self):
        text = (SKILL / "SKILL.md").read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
        self.assertEqual([link for link in links if not (SKILL / link).is_file()], [])


if __name__ == "__main__":
    unittest.main()
