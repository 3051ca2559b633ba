"""Run inside a sandbox that mounts the skill: python -m unittest discover."""
# ruff: noqa: PT009, PT027 - only unittest is there

import io
import unittest

from skills.text.redact.pii import Redactor, find_pii, redact


class Findings(unittest.TestCase):
    def found(self, kind, text):
        return [text[each.start : each.end] for each in find_pii(text) if each.kind == kind]

    def test_emails(self):
        text = "Write to a.b+c@mail.example.co.uk, <x@y.de>. Not a@b, @name or a@b.c"
        self.assertEqual(self.found("email", text), ["a.b+c@mail.example.co.uk", "x@y.de"])

    def test_cards_with_a_right_check_digit(self):
        text = "4111 1111 1111 1111, 5500-0000-0000-0004, 378282246310005; not 4111 1111 1111 1112"
        self.assertEqual(self.found("card", text), ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"])

    def test_a_card_is_found_between_other_groups_of_digits(self):
        self.assertEqual(self.found("card", "no 12 4111 1111 1111 1111 12 2027"), ["4111 1111 1111 1111"])

    def test_ibans_of_the_right_length_and_sum(self):
        text = "DE89 3704 0044 0532 0130 00 EUR and gb82west12345698765432, not DE88 3704 0044 0532 0130 00"
        self.assertEqual(self.found("iban", text), ["DE89 3704 0044 0532 0130 00", "gb82west12345698765432"])

    def test_a_word_after_an_iban_is_left(self):
        self.assertEqual(redact("AT61 1904 3002 3457 3201 PAID"), "[IBAN] PAID")

    def test_ip_addresses(self):
        self.assertEqual(self.found("ip", "from 10.0.0.1. Not 256.1.1.1 nor 1.2.3.4.5"), ["10.0.0.1"])

    def test_phones_of_many_forms(self):
        numbers = [
            "+49 30 1234567",
            "0033 1 23 45 67 89",
            "+1 (555) 010-0199",
            "(555) 010-0199",
            "555-010-0199",
            "030 1234567",
            "0170/1234567",
        ]
        for number in numbers:
            with self.subTest(number):
                self.assertEqual(self.found("phone", f"call {number}, please"), [number])

    def test_dates_sums_and_order_numbers_are_no_phones(self):
        text = "2024-05-31, 31.05.2024, 1,234,567.89, O-10001, 12:30:00, 007, 3.14159265, 1234567890123"
        self.assertEqual(find_pii(text), [])


class Redaction(unittest.TestCase):
    def test_styles(self):
        text = "a@b.de c@d.de A@B.de"
        self.assertEqual(redact(text), "[EMAIL] [EMAIL] [EMAIL]")
        self.assertEqual(redact(text, style="numbered"), "[EMAIL_1] [EMAIL_2] [EMAIL_1]")
        self.assertEqual(redact(text, style="stars"), "*@*.** *@*.** *@*.**")

    def test_kinds_and_values_can_be_left_alone(self):
        self.assertEqual(redact("a@b.de 10.0.0.1", kinds=["ip"]), "a@b.de [IP]")
        self.assertEqual(redact("a@b.de c@d.de", keep=["A@b.de"]), "a@b.de [EMAIL]")

    def test_wrong_options_say_which_there_are(self):
        with self.assertRaisesRegex(ValueError, "kinds are email"):
            redact("", kinds=["mail"])
        with self.assertRaisesRegex(ValueError, "kinds are email"):
            redact("", kinds=[["email"]])
        with self.assertRaisesRegex(ValueError, "label, numbered, stars"):
            redact("", style="black")

    def test_places_have_line_numbers_and_no_values(self):
        redactor = Redactor()
        redactor.redact("a@b.de\n\nx 10.0.0.1\n")
        self.assertEqual(redactor.places, [{"line": 1, "kind": "email"}, {"line": 3, "kind": "ip"}])

    def test_a_stream_is_redacted_as_the_whole_text_is(self):
        lines = "call +49 30 1234567 or mail ann@example.com about 4111 1111 1111 1111\n"
        for text in (lines * 9_000, lines.replace("\n", " ") * 9_000):
            redactor = Redactor()
            self.assertEqual("".join(redactor.stream(io.StringIO(text))), redact(text))
            self.assertEqual(redactor.counts, {"phone": 9_000, "email": 9_000, "card": 9_000})

    def test_hostile_text_ends(self):
        for text in ("a." * 100_000, "1 " * 100_000, "@" * 200_000, "DE89" * 50_000, "+1(" * 60_000):
            redact(text)


if __name__ == "__main__":
    unittest.main()
