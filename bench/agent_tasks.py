"""The skills and tasks of `bench agent`: ten skills, each with a question, and the skills around them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.search.corpus import corpus

BUNDLED = Path(__file__).parents[1] / "skills"
Inputs = Mapping[str, Mapping[str, Any]]


class AgentSkill(NamedTuple):
    """A skill for all three kinds of agents: published, offered as a tool of FastMCP, and written as a folder."""

    name: str
    description: str
    inputs: Inputs
    body: str
    """The lines of `main(args)`."""
    is_bundled: bool = False

    @property
    def code(self) -> str:
        return "def main(args):\n" + "".join(f"    {line}\n" for line in self.body.splitlines())

    @property
    def skill_md(self) -> str:
        """The instructions. A plain folder needs the inputs in them, and how to start the script.

        They are as long as those of the bundled skills on average.
        """
        if self.is_bundled:
            return (BUNDLED / self.name / "SKILL.md").read_text()
        rows = "".join(f"- `{name}` ({one['type']}): {one['description']}\n" for name, one in self.inputs.items())
        sample = json.dumps({name: "…" for name, one in self.inputs.items() if one.get("required")}, ensure_ascii=False)
        run = f"Run `python skills/{self.name}/scripts/main.py '{sample}'`. It prints JSON."
        head = f"---\nname: {self.name}\ndescription: {json.dumps(self.description)}\n---\n"
        text = f"{head}\n# {self.name}\n\n{self.description}\n\n## Inputs\n\n{rows}\n## Use\n\n{run}\n"
        lengths = [len(path.read_text()) for path in BUNDLED.glob("*/SKILL.md") if "guide" not in path.parent.name]
        prose = (BUNDLED / "text.csv.query" / "SKILL.md").read_text().partition("\n# ")[2]
        return f"{text}\n## Notes\n\n{prose[: max(0, sum(lengths) // len(lengths) - len(text))]}\n"

    @property
    def manifest(self) -> dict[str, Any]:
        runtime = {"language": "python", "entrypoint": "code/main.py", "export": "main"}
        made = {"name": self.name, "version": "1.0.0", "description": self.description, "runtime": runtime}
        return made | {"inputs": self.inputs}

    @property
    def script(self) -> str:
        return f"import json, sys\n\n\n{self.code}\n\nprint(json.dumps(main(json.loads(sys.argv[1]))))\n"


class SkillTask(NamedTuple):
    """A task that one skill solves. `words` is what an agent searches for."""

    skill: AgentSkill
    question: str
    words: str
    args: dict[str, Any]
    output: Any


def _one(type_: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "description": description, **more}


def _needed(type_: str, description: str) -> dict[str, Any]:
    return _one(type_, description, required=True)


TASKS = (
    SkillTask(
        AgentSkill(
            "office.invoice-total",
            "Adds up the lines of an invoice and applies a tax rate in percent.",
            {"amounts": _needed("array", "Net amounts"), "tax": _one("number", "Tax in percent", default=0)},
            "net = sum(args['amounts'])\nreturn {'net': net, 'gross': round(net * (1 + args.get('tax', 0) / 100), 2)}",
        ),
        "Add up the invoice with 120, 80 and 50 net and 20 percent tax.",
        "add up invoice with tax",
        {"amounts": [120, 80, 50], "tax": 20},
        {"net": 250, "gross": 300.0},
    ),
    SkillTask(
        AgentSkill(
            "text.slugs",
            "Makes a slug for an address from a title: lower case letters, digits and hyphens.",
            {"title": _needed("string", "The title")},
            "import re\nreturn re.sub('[^a-z0-9]+', '-', args['title'].lower()).strip('-')",
        ),
        "Make a slug of the title 'Ten Days in Oslo!'.",
        "make a slug from a title",
        {"title": "Ten Days in Oslo!"},
        "ten-days-in-oslo",
    ),
    SkillTask(
        AgentSkill(
            "dates.workdays",
            "Counts the working days (Monday to Friday) between two dates, both included.",
            {"first": _needed("string", "First day, as 2026-11-02"), "last": _needed("string", "Last day")},
            "from datetime import date, timedelta\n"
            "first, last = date.fromisoformat(args['first']), date.fromisoformat(args['last'])\n"
            "days = (first + timedelta(n) for n in range((last - first).days + 1))\n"
            "return sum(day.weekday() < 5 for day in days)",
        ),
        "How many working days are from 2026-11-02 to 2026-11-15?",
        "count working days between dates",
        {"first": "2026-11-02", "last": "2026-11-15"},
        10,
    ),
    SkillTask(
        AgentSkill(
            "maths.summary",
            "Computes mean, median and standard deviation of a list of numbers.",
            {"numbers": _needed("array", "The numbers"), "digits": _one("integer", "Digits to keep", default=2)},
            "import statistics as s\nn, d = args['numbers'], args.get('digits', 2)\n"
            "return {'mean': round(s.mean(n), d), 'median': s.median(n), 'deviation': round(s.pstdev(n), d)}",
        ),
        "Mean and standard deviation of 2, 4, 4, 4, 5, 5, 7, 9?",
        "mean median deviation of numbers",
        {"numbers": [2, 4, 4, 4, 5, 5, 7, 9]},
        {"mean": 5, "median": 4.5, "deviation": 2.0},
    ),
    SkillTask(
        AgentSkill(
            "text.word-count",
            "Counts words, lines and the most frequent words of a text.",
            {"text": _needed("string", "The text"), "top": _one("integer", "Frequent words to list", default=3)},
            "from collections import Counter\nwords = args['text'].lower().split()\n"
            "return {'words': len(words), 'top': [w for w, _ in Counter(words).most_common(args.get('top', 3))]}",
        ),
        "Count the words of 'one two two three three three'.",
        "count words of a text",
        {"text": "one two two three three three"},
        {"words": 6, "top": ["three", "two", "one"]},
    ),
    SkillTask(
        AgentSkill(
            "colors.hex-to-rgb",
            "Converts a color in hexadecimal notation to its red, green and blue parts.",
            {"color": _needed("string", "The color, as #ff8800")},
            "c = args['color'].lstrip('#')\nreturn [int(c[n:n + 2], 16) for n in (0, 2, 4)]",
        ),
        "What are the RGB parts of the color #ff8800?",
        "convert hex color to rgb",
        {"color": "#ff8800"},
        [255, 136, 0],
    ),
    SkillTask(
        AgentSkill(
            "units.temperature",
            "Converts a temperature between Celsius, Fahrenheit and Kelvin.",
            {
                "value": _needed("number", "The temperature"),
                "unit": {"type": "string", "enum": ["C", "F", "K"], "required": True, "description": "Its unit"},
                "to": {
                    "type": "string",
                    "enum": ["C", "F", "K"],
                    "default": "C",
                    "description": "The unit of the result",
                },
            },
            "v, unit, to = args['value'], args['unit'], args.get('to', 'C')\n"
            "c = {'C': v, 'F': (v - 32) / 1.8, 'K': v - 273.15}[unit]\n"
            "return round({'C': c, 'F': c * 1.8 + 32, 'K': c + 273.15}[to], 2)",
        ),
        "Convert 212 degrees Fahrenheit to Celsius.",
        "convert temperature fahrenheit celsius",
        {"value": 212, "unit": "F"},
        100.0,
    ),
    SkillTask(
        AgentSkill(
            "finance.loan-rate",
            "Computes the monthly rate of a loan from its amount, yearly interest and number of months.",
            {
                "amount": _needed("number", "The amount"),
                "interest": _needed("number", "Interest a year, in percent"),
                "months": _needed("integer", "Number of months"),
            },
            "q = args['interest'] / 1200\nreturn round(args['amount'] * q / (1 - (1 + q) ** -args['months']), 2)",
        ),
        "What is the monthly rate of a loan of 10000 at 6 percent over 12 months?",
        "monthly rate of a loan",
        {"amount": 10000, "interest": 6, "months": 12},
        860.66,
    ),
    SkillTask(
        AgentSkill(
            "lists.ranking",
            "Ranks named scores, the highest first, and gives equal scores the same rank.",
            {"scores": _needed("object", "Score by name")},
            "s = args['scores']\nranked = sorted(s, key=lambda name: (-s[name], name))\n"
            "return [[1 + sum(s[o] > s[n] for o in s), n] for n in ranked]",
        ),
        "Rank the scores: Ada 9, Bob 7, Cy 9.",
        "rank scores by name",
        {"scores": {"Ada": 9, "Bob": 7, "Cy": 9}},
        [[1, "Ada"], [1, "Cy"], [3, "Bob"]],
    ),
    SkillTask(
        AgentSkill(
            "text.initials",
            "Makes the initials of a person from the full name.",
            {"name": _needed("string", "The full name"), "dots": _one("boolean", "With dots", default=False)},
            "return ('.' if args.get('dots') else '').join(p[0].upper() for p in args['name'].split())",
        ),
        "What are the initials of 'ada lovelace king'?",
        "initials of a name",
        {"name": "ada lovelace king"},
        "ALK",
    ),
)
COUNT_BUNDLED = 5
"""Without the guide, which agents get from their prompt."""
OTHER_INPUTS = {
    "request": _needed("string", "What to do, in a sentence"),
    "options": _one("object", "Further settings", default={}),
}


def skills(count: int) -> list[AgentSkill]:
    """Return the skills of the tasks and others with descriptions like those of public skills. `count` counts the
    bundled skills too, which every server has.
    """
    others = [one for one in corpus() if "-" in one.name][: count - len(TASKS) - COUNT_BUNDLED]
    return [
        *(task.skill for task in TASKS),
        *(AgentSkill(one.name, one.description[:500], OTHER_INPUTS, "return args['request']") for one in others),
    ]
