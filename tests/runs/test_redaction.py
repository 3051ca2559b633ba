"""Redaction replaces secret values in the texts of a run and changes nothing else."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.backends import Failure, Log, NetworkUse, Outcome, SecretValues
from skillery.runs.redaction import RedactedStream, Redaction

VALUE = "tok/en+of-a kind_4711"
REDACTION = Redaction(SecretValues(KEY=VALUE))
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=8, max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        quote(VALUE),
        quote(VALUE, safe=""),
        quote(VALUE, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
        quote_plus(VALUE),
        VALUE.encode().hex(),
        VALUE.encode().hex().upper(),
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
    ],
)
def test_every_form_is_redacted(form: str) -> None:
    assert REDACTION.text(f"a {form} b") == "a [KEY] b"


@pytest.mark.parametrize("user", ["", "a", "ab", "abc", "user:"])
@pytest.mark.parametrize("behind", ["", "x", "xy", "xyz"])
def test_base64_of_something_around_a_value_is_redacted(user: str, behind: str) -> None:
    encoded = base64.b64encode((user + VALUE + behind).encode()).decode()

    redacted = REDACTION.text(f"Basic {encoded}")

    assert "[KEY]" in redacted
    left = redacted.removeprefix("Basic ").replace("[KEY]", "")
    assert len(left) <= len(encoded) - len(VALUE)


@given(values, texts, texts)
def test_a_value_is_in_no_text_after_it(value: str, before: str, behind: str) -> None:
    redacted = Redaction(SecretValues(A_NAME=value)).text(f"{before}{value}{behind}")

    assert value not in redacted.replace("[A_NAME]", "\0")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.booleans())
def test_json_without_a_value_stays_byte_for_byte(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()

    assert Redaction(SecretValues(A_NAME="\x01 nowhere \x02")).json(text) == text


@given(json_values, values, st.booleans())
def test_json_with_a_value_stays_json_and_loses_it(value: Any, secret: str, ascii_only: bool) -> None:
    whole = {"before": value, secret: [secret, f"x{secret}", {"k": secret}], "behind": value}
    text = json.dumps(whole, ensure_ascii=ascii_only).encode()

    redacted = Redaction(SecretValues(A_NAME=secret)).json(text)

    assert "[A_NAME]" in json.loads(redacted)
    assert secret not in str(json.loads(redacted)["[A_NAME]"])


def test_a_number_that_is_a_value_becomes_a_text() -> None:
    redaction = Redaction(SecretValues(PIN="4711"))

    assert redaction.json(b'{"a":4711,"b":[47110,-4711,4711]}') == b'{"a":"[PIN]","b":[47110,-4711,"[PIN]"]}'


def test_an_escaped_value_in_json_is_redacted() -> None:
    escaped = "".join(f"\\u{ord(character):04x}" for character in VALUE)

    assert REDACTION.json(f'["a{escaped}b"]'.encode()) == b'["a[KEY]b"]'


def test_large_text_of_escapes_is_redacted() -> None:
    text = json.dumps(['"\\' * 500_000 + VALUE, *range(1000)]).encode()

    assert VALUE.encode() not in REDACTION.json(text)


def test_many_lines_and_much_text_are_no_burden() -> None:
    values = SecretValues(MANY="\n".join(f"line number {i} of a value" for i in range(5_000)), ONE="x" * 65_536)
    text = json.dumps(["x" * 4_000_000, "\n" * 1_000_000]).encode()
    log = Log(b"x" * 500_000, b"x" * 500_000, 1)

    redaction = Redaction(values)

    assert redaction.json(text).count(b"[ONE]") == 4_000_000 // 65_536
    assert redaction.log(log).head.endswith(b"[ONE]")


def test_of_values_that_overlap_the_longest_goes_first() -> None:
    redaction = Redaction(SecretValues(SHORT="abcd", LONG="abcdefgh"))

    assert redaction.text("abcdefgh abcd") == "[LONG] [SHORT]"


def test_a_value_of_three_characters_is_left_alone() -> None:
    assert Redaction(SecretValues(PIN="123")).text("123 is 123") == "123 is 123"


def test_each_line_of_a_key_is_redacted_separately() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADAN\nBgkqhkiG9w0B\n-----END KEY-----\n"
    redaction = Redaction(SecretValues(PEM=pem))

    assert redaction.text("  > MIIEvQIBADAN\n  > BgkqhkiG9w0B") == "  > [PEM]\n  > [PEM]"
    assert redaction.text(f"<{pem}>") == "<[PEM]>"
    assert redaction.text(f"<{pem.strip()}>") == "<[PEM]>"


def test_a_log_in_two_parts_is_redacted_across_them() -> None:
    log = REDACTION.log(Log(head=f"a {VALUE[:9]}".encode(), tail=f"{VALUE[9:]} b".encode()))

    assert log.head + log.tail == b"a [KEY] b"


@given(st.integers(4, len(VALUE) - 1), st.integers(1, len(VALUE) - 4))
def test_pieces_next_to_dropped_text_are_redacted(head: int, tail: int) -> None:
    log = REDACTION.log(Log(head=f"a {VALUE[:head]}".encode(), tail=f"{VALUE[tail:]} b".encode(), dropped=100))

    assert log == Log(head=b"a [KEY]", tail=b"[KEY] b", dropped=100)


def test_a_log_that_is_no_utf_8_is_redacted() -> None:
    assert REDACTION.log(Log(head=b"\xff" + VALUE.encode() + b"\xfe")).head == b"\xff[KEY]\xfe"


@pytest.mark.parametrize("cut", ["…", "\n...\n"])
def test_pieces_next_to_a_cut_in_an_error_are_redacted(cut: str) -> None:
    behind = f"{VALUE[5:]} b" if cut != "…" else ""

    redacted = REDACTION.text(f"a {VALUE[:10]}{cut}{behind}")

    assert redacted == f"a [KEY]{cut}" + ("[KEY] b" if behind else "")


def test_within_a_result_there_are_no_cuts() -> None:
    """Sandboxes do not shorten results, so marks in a result are not searched for cut values. A million marks would
    take a million searches.
    """
    said = json.dumps(f"a {VALUE[:10]}…\n{VALUE}", ensure_ascii=False).encode()

    assert json.loads(REDACTION.json(said)) == f"a {VALUE[:10]}…\n[KEY]"


def test_beyond_a_hundred_cuts_whole_values_are_redacted() -> None:
    assert REDACTION.text("…" * 150 + f"{VALUE} {VALUE[:10]}…") == "…" * 150 + f"[KEY] {VALUE[:10]}…"


def test_a_whole_outcome_is_redacted() -> None:
    failed = Outcome(failure=Failure(f"E{VALUE}", f"401 {VALUE}", f"raise {VALUE}"), summary=VALUE, degraded=("x",))
    completed = Outcome(result=json.dumps(VALUE).encode(), log=Log(VALUE.encode()), duration_ms=3.0)

    assert REDACTION.outcome(failed) == Outcome(
        failure=Failure("E[KEY]", "401 [KEY]", "raise [KEY]"), summary="[KEY]", degraded=("x",)
    )
    assert REDACTION.outcome(completed) == Outcome(result=b'"[KEY]"', log=Log(b"[KEY]"), duration_ms=3.0)


def test_secret_value_in_a_lower_case_host_name_is_redacted() -> None:
    uses = (NetworkUse("tok-en123.evil.test", 443, False, "TOK-EN123.evil.test is not listed"),)
    outcome = Redaction({"KEY": "TOK-EN123"}).outcome(Outcome(result=b"1", network=uses))
    assert outcome.network == (NetworkUse("[KEY].evil.test", 443, False, "[KEY].evil.test is not listed"),)


def test_without_secrets_nothing_changes() -> None:
    outcome = Outcome(result=b'"x"', log=Log(b"a", b"b"))

    assert Redaction({}).outcome(outcome) is outcome


def test_values_do_not_show_where_they_are_printed() -> None:
    printed = SecretValues(KEY=VALUE)

    assert VALUE not in f"{printed} {printed!r} {[printed]}"
    assert unquote(str(printed)) == "SecretValues(KEY)"


@pytest.mark.parametrize("cut", range(1, len(VALUE)))
def test_a_value_in_two_pieces_of_a_stream_is_redacted(cut: int) -> None:
    stream = RedactedStream(REDACTION)
    sent = [stream.feed(f"a {VALUE[:cut]}".encode()), stream.feed(f"{VALUE[cut:]} b".encode()), stream.rest()]

    assert b"".join(sent) == b"a [KEY] b"


@given(
    values=st.dictionaries(st.sampled_from(["A", "B"]), st.text("abc\n", min_size=4, max_size=12), min_size=1),
    pieces=st.lists(st.text("abc\n", max_size=9), max_size=12),
)
def test_stream_redacts_values_split_across_pieces(values: dict[str, str], pieces: list[str]) -> None:
    """The alphabets are small, so that values overlap, contain each other and are cut everywhere."""
    stream = RedactedStream(Redaction(values))

    sent = b"".join([*(stream.feed(piece.encode()) for piece in pieces), stream.rest()])

    assert not any(value.encode() in sent.replace(b"[A]", b"|").replace(b"[B]", b"|") for value in values.values())
    if not any(form in "".join(pieces).encode() for form in Redaction(values).marks_in_bytes):
        assert sent == "".join(pieces).encode()
