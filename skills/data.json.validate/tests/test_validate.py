"""Run inside a sandbox that mounts the skill: python -m unittest discover."""
# ruff: noqa: PT009, PT027 - only unittest is there

import unittest

from skills.data.json.validate import SchemaError, load_schema, validate

ORDER = {
    "order_id": "O-10001",
    "ordered_on": "2024-02-29",
    "lines": [{"sku": "KB-110", "quantity": 2, "unit_price": 19.99}],
}


def keywords(value, schema):
    return [each["keyword"] for each in validate(value, schema)]


class Validate(unittest.TestCase):
    def test_the_example_schemas_accept_what_they_describe(self):
        self.assertEqual(validate(ORDER, load_schema("order")), [])
        self.assertEqual(validate({"name": "A", "email": "a@b.example"}, load_schema("contact")), [])

    def test_every_violation_is_listed_with_its_path(self):
        order = {**ORDER, "ordered_on": "2023-02-29", "a/b": 1, "lines": [{"sku": "", "quantity": 0.5}]}
        self.assertEqual(
            [(each["path"], each["keyword"]) for each in validate(order, load_schema("order"))],
            [
                ("/ordered_on", "format"),
                ("/lines/0", "required"),
                ("/lines/0/sku", "minLength"),
                ("/lines/0/quantity", "type"),
                ("/lines/0/quantity", "minimum"),
                ("/a~1b", "additionalProperties"),
            ],
        )

    def test_messages_say_what_is_and_what_is_expected(self):
        self.assertEqual(validate("7", {"type": "integer"})[0]["message"], 'is string ("7"), expected is integer')

    def test_types_are_those_of_json(self):
        self.assertEqual(keywords(1.0, {"type": "integer"}), [])
        self.assertEqual(keywords(True, {"type": ["integer", "number"]}), ["type"])
        self.assertEqual(keywords(None, {"type": "null"}), [])
        self.assertEqual(keywords(True, {"enum": [1]}), ["enum"])
        self.assertEqual(keywords({"b": 1, "a": [2.0]}, {"const": {"a": [2], "b": 1}}), [])

    def test_numbers_and_sizes_have_bounds(self):
        self.assertEqual(keywords(5, {"minimum": 5, "maximum": 5}), [])
        self.assertEqual(
            keywords(5, {"exclusiveMinimum": 5, "exclusiveMaximum": 5}), ["exclusiveMinimum", "exclusiveMaximum"]
        )
        self.assertEqual(keywords(0.3, {"multipleOf": 0.1}), [])
        self.assertEqual(keywords(1e300, {"multipleOf": 0.01}), [])
        self.assertEqual(keywords(float("inf"), {"multipleOf": 0.01}), ["multipleOf"])
        self.assertEqual(keywords([1, 1.0, True], {"uniqueItems": True, "maxItems": 2}), ["maxItems", "uniqueItems"])
        self.assertEqual(keywords("äöü", {"maxLength": 3}), [])
        self.assertEqual(keywords({}, {"minProperties": 1}), ["minProperties"])

    def test_schemas_combine(self):
        self.assertEqual(keywords(3, {"anyOf": [{"type": "string"}, {"minimum": 4}]}), ["anyOf"])
        self.assertEqual(keywords(5, {"oneOf": [{"minimum": 1}, {"minimum": 4}]}), ["oneOf"])
        self.assertEqual(keywords(5, {"allOf": [{"type": "string"}, {"minimum": 6}]}), ["type", "minimum"])
        self.assertEqual(keywords(5, {"not": {"type": "integer"}}), ["not"])
        self.assertEqual(keywords(5, {"if": {"minimum": 3}, "then": {"maximum": 4}, "else": False}), ["maximum"])
        self.assertEqual(keywords([1, "a", 2], {"prefixItems": [True], "items": {"type": "integer"}}), ["type"])
        self.assertEqual(keywords({"x-a": 1}, {"patternProperties": {"^x-": {"type": "string"}}}), ["type"])
        self.assertEqual(keywords(1, False), ["false"])

    def test_a_schema_may_refer_to_itself(self):
        tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
        self.assertEqual(validate({"kids": [{"kids": []}, {"kids": [7]}]}, tree)[0]["path"], "/kids/1/kids/0")

    def test_references_in_a_circle_end(self):
        with self.assertRaisesRegex(SchemaError, "circle"):
            validate(1, {"$ref": "#"})

    def test_a_wrong_schema_is_said_with_its_place(self):
        wrong = {
            "#/properties/a/type": {"properties": {"a": {"type": "strnig"}}},
            "#/pattern": {"pattern": "("},
            "#/unevaluatedItems: this keyword is not supported": {"unevaluatedItems": False},
            "nothing at 'x'": {"$ref": "#/$defs/x", "$defs": {}},
            "only references within": {"$ref": "https://example.com/x"},
            "#/items is 5": {"items": 5},
            "one of date, time": {"format": "colour"},
            "#/multipleOf": {"multipleOf": 0},
        }
        for message, schema in wrong.items():
            with self.subTest(message), self.assertRaisesRegex(SchemaError, message.replace("$", r"\$")):
                validate(1, schema)

    def test_an_unknown_example_says_which_there_are(self):
        with self.assertRaisesRegex(ValueError, "contact, order"):
            load_schema("../order")


if __name__ == "__main__":
    unittest.main()
