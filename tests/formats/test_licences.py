"""The licence that the text of a licence file is: only whole, known texts count."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillery.formats.licences import MOST_BYTES, is_licence_file, licence_of_text

APACHE = (Path(__file__).parents[2] / "LICENSE").read_text()
MIT = """MIT License

Copyright (c) 2026 Ann Example and others

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
CONDITION = "The licence above does not grant the right to sell the software or a service whose value comes from it. "


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        (MIT, "MIT"),
        (MIT.replace("\n", "\r\n").upper(), "MIT"),
        (APACHE, "Apache-2.0"),
        (MIT.replace("sell copies", "lend copies"), "other"),
        (MIT + CONDITION, "other"),
        (CONDITION * 3 + MIT, "other"),
        (APACHE + CONDITION * 3, "other"),
        ("This software is not under the following license.\n" + MIT, "other"),
        ("For the examples only:\n" + APACHE, "other"),
        (MIT + "It does not apply to the scripts.", "other"),
        (MIT + APACHE, "other"),
        (MIT + " " * MOST_BYTES, "other"),
        ("All rights reserved.", "other"),
        ("", "other"),
    ],
)
def test_only_whole_known_texts_are_open_licences(text: str, licence: str) -> None:
    assert licence_of_text(text.encode()) == licence


def test_keys_are_no_licence_files() -> None:
    names = ["LICENSE", "LICENCE.md", "a/copying", "license.txt", "license.key", "license.pem", "LICENSE-MIT"]

    assert [name for name in names if is_licence_file(name)] == names[:4]
