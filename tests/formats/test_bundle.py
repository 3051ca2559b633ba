"""Bundles: every file is checked, equal files give one digest, and one error lists all problems."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.errors import BundleTooLarge, InvalidBundle, InvalidManifest, InvalidParams, InvalidPath
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits, digest_of
from skillery.formats.manifest import manifest_toml
from tests.support.bundles import make_bundle

MANIFEST: dict[str, Any] = {
    "name": "team.greet", "version": "1.0.0", "description": "Greet.", "runtime": {"entrypoint": "code/main.py"},
}  # fmt: skip
MAIN = BundleFile("code/main.py", b"def main(args): return 1\n")
SKILL_MD = "---\nname: Greet\n---\n# Greet\n"


def make(*files: BundleFile, manifest: dict[str, Any] = MANIFEST, skill_md: str = SKILL_MD, **limits: int) -> Bundle:
    return make_bundle(manifest, skill_md, files, BundleLimits(**limits))


def refusal(*files: BundleFile, manifest: dict[str, Any] = MANIFEST, skill_md: str = SKILL_MD) -> InvalidParams:
    with pytest.raises(InvalidParams) as caught:
        make(*files, manifest=manifest, skill_md=skill_md)
    assert caught.value.hint
    assert caught.value.data["problems"]
    return caught.value


def test_a_bundle_holds_all_its_files_in_order() -> None:
    bundle = make(BundleFile("resources/ä.txt", b"\xff", executable=True), MAIN)
    assert [file.path for file in bundle.files] == ["SKILL.md", "code/main.py", "resources/ä.txt", "skill.toml"]
    assert bundle.files[0].content == SKILL_MD.encode()
    assert bundle.files[3].content == manifest_toml(MANIFEST)
    assert bundle.size_bytes == sum(len(file.content) for file in bundle.files)
    assert bundle.skill_md.frontmatter == {"name": "Greet"}
    assert bundle.warnings == ()


def test_digest_matches_the_documented_format() -> None:
    files = [BundleFile("b", b"1", executable=True), BundleFile("a/ä", b"")]
    lines = f"100644 {hashlib.sha256(b'').hexdigest()} a/ä\n100755 {hashlib.sha256(b'1').hexdigest()} b\n"
    assert digest_of(files) == "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def test_a_published_bundle_keeps_its_digest_in_every_release() -> None:
    assert make(MAIN).digest == "sha256:c1f3b0b06d28d6a6d9062837183b977b8a6cf614667bc2982f0ee0b9ee0dd064"


files = st.lists(
    st.builds(BundleFile, st.text("ab/äz", min_size=1, max_size=4), st.binary(max_size=3), st.booleans()),
    max_size=5,
    unique_by=lambda file: file.path,
)


@given(files, st.randoms())
def test_the_order_of_files_does_not_change_the_digest(given_files: list[BundleFile], random: Any) -> None:
    shuffled = list(given_files)
    random.shuffle(shuffled)
    assert digest_of(shuffled) == digest_of(given_files)


@given(files, files)
def test_different_files_have_different_digests(one: list[BundleFile], other: list[BundleFile]) -> None:
    def content(each: list[BundleFile]) -> set[tuple[str, bytes, bool]]:
        return {(file.path, file.content, file.executable) for file in each}

    assert (digest_of(one) == digest_of(other)) == (content(one) == content(other))


def test_equivalent_document_files_are_kept_verbatim() -> None:
    toml = b'# mine\nversion="1.0.0"\nname="team.greet"\ndescription="Greet."\nruntime.entrypoint="code/main.py"\n'
    document = SKILL_MD.replace("\n", "\r\n").encode()
    bundle = make(MAIN, BundleFile("skill.toml", toml), BundleFile("SKILL.md", document))
    kept = {file.path: file.content for file in bundle.files}
    assert (kept["skill.toml"], kept["SKILL.md"]) == (toml, document)
    assert len(bundle.files) == 3


def test_contradicting_document_files_are_refused() -> None:
    toml = manifest_toml({**MANIFEST, "runtime": {"entrypoint": "code/x.py"}})
    error = refusal(MAIN, BundleFile("skill.toml", toml), BundleFile("SKILL.md", b"other"))
    assert isinstance(error, InvalidBundle)
    assert [each["file"] for each in error.data["problems"]] == ["skill.toml", "SKILL.md"]
    assert "runtime.entrypoint" in error.message


def test_document_path_in_another_case_is_refused() -> None:
    assert isinstance(refusal(MAIN, BundleFile("skill.md", b"x")), InvalidPath)
    assert isinstance(refusal(MAIN, BundleFile("SKILL.TOML/x", b"x")), InvalidPath)


def test_a_missing_entrypoint_is_named_with_the_nearest_file() -> None:
    error = refusal(BundleFile("code/mian.py", MAIN.content))
    assert "'code/main.py' is not in the bundle (did you mean 'code/mian.py'?)" in error.message
    assert (error.data["file"], error.data["line"]) == ("code/main.py", 1)


def test_an_entrypoint_that_does_not_compile_is_refused_with_its_line() -> None:
    error = refusal(BundleFile("code/main.py", b"x = 1\ndef main(:\n"))
    assert (error.type, error.data["file"], error.data["line"]) == ("invalid_bundle", "code/main.py", 2)


def test_other_python_files_that_do_not_compile_are_warnings() -> None:
    bundle = make(MAIN, BundleFile("code/lib/a.py", b"def"), BundleFile("resources/template.py", b"{{ x }"))
    assert len(bundle.warnings) == 1
    assert "code/lib/a.py" in bundle.warnings[0]


def test_all_problems_are_reported_at_once() -> None:
    error = refusal(
        BundleFile("code/main.py", b"def run(): pass"),
        BundleFile("../x", b""),
        BundleFile("a\ud800", b""),
        skill_md="---\nx",
    )
    assert isinstance(error, InvalidBundle)
    text = " ".join(each["message"] for each in error.data["problems"])
    assert all(word in text for word in ("without an end", "'..'", "surrogate", "does not define 'main'"))
    str(error.data).encode()


def test_single_kind_of_problem_keeps_its_error_type() -> None:
    assert isinstance(refusal(MAIN, manifest={**MANIFEST, "version": "1"}), InvalidManifest)
    assert isinstance(refusal(MAIN, BundleFile("/x", b"")), InvalidPath)
    assert isinstance(refusal(MAIN, MAIN), InvalidPath)
    assert isinstance(refusal(MAIN, skill_md="a\x00"), InvalidBundle)
    assert isinstance(refusal(MAIN, skill_md="a\ud800"), InvalidBundle)


def test_too_many_files_or_bytes_are_reported_with_the_limit() -> None:
    with pytest.raises(BundleTooLarge) as caught:
        make(MAIN, max_files=2)
    assert (caught.value.data["files"], caught.value.data["max_files"]) == (3, 2)
    with pytest.raises(BundleTooLarge) as caught:
        make(MAIN, BundleFile("big", b"x" * 2000), max_bytes=1000)
    assert caught.value.data["max_bytes"] == 1000
    make(MAIN, max_files=3)


def test_an_instruction_skill_needs_no_code() -> None:
    bundle = make_bundle({"name": "a", "version": "1.0.0", "description": "x"}, "", [])
    assert (bundle.manifest.kind, len(bundle.files), bundle.skill_md.body) == ("instruction", 2, "")


@given(st.lists(st.builds(BundleFile, st.text(max_size=12), st.binary(max_size=8)), max_size=4), st.text(max_size=20))
def test_any_files_make_a_bundle_or_a_clear_error(given_files: list[BundleFile], skill_md: str) -> None:
    try:
        make(MAIN, *given_files, skill_md=skill_md)
    except InvalidParams as error:
        (error.message + str(error.data)).encode()
