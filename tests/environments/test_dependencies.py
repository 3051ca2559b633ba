"""Skills with dependencies: publishing a version checks its declared dependencies and locks them."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.environments.sources import PackageSources
from skillery.formats.requirements import InvalidLock, read_lock
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.needing import CODE, create, lock_of, needing, pins, refused
from tests.support.package_index import PackageIndex
from tests.support.wheels import make_wheel

OTHER_LINES = r"""figures; os_name == 'posix\x27\n--no-binary :all:\nother\nfigures; \x22x\x22 != \x27x'"""
"""The value of a marker contains escapes that would decode to further lines, for example options of uv."""

# -- declared --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dependencies", "path", "words"),
    [
        (["pandas>=2", "num py"], "runtime.dependencies[1]", "is not a requirement"),
        (["pandas @ https://example.org/p.whl"], "runtime.dependencies[0]", "names an address"),
        (["-r other.txt"], "runtime.dependencies[0]", "is not a requirement"),
        ([OTHER_LINES], "runtime.dependencies[0]", "has a backslash"),
        (["a; os_name == '\\ud800'"], "runtime.dependencies[0]", "has a backslash"),
        ("pandas", "runtime.dependencies", "expected an array"),
        (["a"] * 101, "runtime.dependencies", "at most 100"),
    ],
)
def test_publishing_refuses_invalid_dependencies_with_their_path(
    sqlite_rpc: Rpc, new_name: str, dependencies: Any, path: str, words: str
) -> None:
    made = manifest(new_name, runtime={"entrypoint": "code/main.py", "dependencies": dependencies})

    data = refused(sqlite_rpc, made)["data"]

    problem = data["problems"][0]
    assert problem["path"] == path
    assert words in problem["message"]
    assert "pandas>=2,<3" in data["hint"]


def test_a_problem_names_its_line_of_skill_toml(sqlite_rpc: Rpc, new_name: str) -> None:
    toml = (
        f'name = "{new_name}"\nversion = "1.0.0"\ndescription = "What {new_name} does."\n\n'
        '[runtime]\nentrypoint = "code/main.py"\n'
        'dependencies = [\n  "pandas>=2", # "commented"\n  "num py",\n]\nrequires-python = "new"\n'
    )
    made = manifest(new_name)
    made["runtime"] = {
        "entrypoint": "code/main.py",
        "dependencies": ["pandas>=2", "num py"],
        "requires-python": "new",
    }

    problems = refused(sqlite_rpc, made, **{"skill.toml": toml})["data"]["problems"]

    assert [(one["path"], one["file"], one["line"]) for one in problems] == [
        ("runtime.dependencies[1]", "skill.toml", 9),
        ("runtime.requires-python", "skill.toml", 11),
    ]


def test_a_python_that_this_server_does_not_have_is_refused(sqlite_rpc: Rpc, new_name: str) -> None:
    made = manifest(new_name, runtime={"entrypoint": "code/main.py", "requires-python": ">=4"})

    error = refused(sqlite_rpc, made)

    assert (error["code"], error["data"]["problems"][0]["path"]) == (-32602, "runtime.requires-python")
    assert "this server runs Python 3" in error["message"]


@pytest.mark.parametrize(
    ("runtime", "path", "line"),
    [
        ({"dependencies": ["frames", "ghost>=1"]}, "runtime.dependencies[1]", 9),
        ({"dependencies": ["frames"], "requires-python": ">=4"}, "runtime.requires-python", 10),
    ],
)
def test_a_problem_during_locking_names_its_line_of_skill_toml(
    packages_rpc: Rpc, new_name: str, runtime: dict[str, Any], path: str, line: int
) -> None:
    listed = "".join(f'  "{one}",\n' for one in runtime["dependencies"])
    requires = f'requires-python = "{runtime["requires-python"]}"\n' if "requires-python" in runtime else ""
    toml = (
        f'name = "{new_name}"\nversion = "1.0.0"\ndescription = "What {new_name} does."\n\n'
        f'[runtime]\nentrypoint = "code/main.py"\ndependencies = [\n{listed}]\n{requires}'
    )
    made = manifest(new_name)
    made["runtime"] = {"entrypoint": "code/main.py", **runtime}

    data = refused(packages_rpc, made, **{"skill.toml": toml})["data"]

    assert [(one["path"], one["file"], one["line"]) for one in data["problems"]] == [(path, "skill.toml", line)]
    assert (data["file"], data["line"]) == ("skill.toml", line)


def test_a_server_without_packages_says_how_to_get_some(sqlite_rpc: Rpc, new_name: str) -> None:
    error = refused(sqlite_rpc, needing(new_name, "frames"))

    assert (error["code"], error["data"]["type"]) == (-32007, "packages_not_offered")
    assert "packages.index_urls" in error["data"]["hint"]


# -- locked ----------------------------------------------------------------------------------------------------------


def test_a_version_is_published_with_its_lock(packages_rpc: Rpc, new_name: str, wheelhouse: Path) -> None:
    create(packages_rpc, needing(new_name, "frames>=1,<2"))
    lock = lock_of(packages_rpc, new_name)
    wheel = hashlib.sha256((wheelhouse / "frames-1.5-py3-none-any.whl").read_bytes()).hexdigest()

    assert pins(lock) == {"frames": "1.5", "figures": "2.0"}
    assert f"sha256:{wheel}" in lock
    assert str(wheelhouse) not in lock


def test_the_lock_counts_for_the_digest(packages_rpc: Rpc, new_name: str) -> None:
    one = create(packages_rpc, needing(f"{new_name}.a", "frames<2"))
    lock = lock_of(packages_rpc, f"{new_name}.a")

    found = packages_rpc("describe_skill", name=f"{new_name}.a", detail="full")["skill"]

    assert found["digest"] == one["digest"]
    entry = next(file for file in found["files"] if file["path"] == "requirements.lock")
    assert entry["sha256"] == hashlib.sha256(lock.encode()).hexdigest()


def test_describe_skill_tells_the_packages(packages_rpc: Rpc, new_name: str) -> None:
    create(packages_rpc, needing(new_name, "frames<2", "figures<2"))

    shown = packages_rpc("describe_skill", name=new_name)["skill"]["lock"]

    packages = [{"name": "figures", "version": "1.0"}, {"name": "frames", "version": "1.5"}]
    assert shown["packages"] == packages
    assert shown["sha256"] == hashlib.sha256(lock_of(packages_rpc, new_name).encode()).hexdigest()


def test_the_same_files_again_are_the_same_version(packages_rpc: Rpc, new_name: str, wheelhouse: Path) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    first = create(packages_rpc, needing(new_name, own))
    make_wheel(wheelhouse, own, "1.1")

    assert create(packages_rpc, needing(new_name, own)) == first


def test_the_same_dependencies_get_the_same_lock_for_a_while(
    packages_rpc: Rpc, new_name: str, wheelhouse: Path
) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    create(packages_rpc, needing(f"{new_name}.a", own, "frames <2"))
    make_wheel(wheelhouse, own, "1.1")
    create(packages_rpc, needing(f"{new_name}.b", "frames<2", own))

    assert lock_of(packages_rpc, f"{new_name}.a") == lock_of(packages_rpc, f"{new_name}.b")


def test_an_exported_lock_is_verified_and_kept_byte_for_byte(
    packages_rpc: Rpc, new_name: str, wheelhouse: Path
) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    create(packages_rpc, needing(f"{new_name}.a", own))
    lock = lock_of(packages_rpc, f"{new_name}.a")
    make_wheel(wheelhouse, own, "1.1")
    mine = "# mine\n" + lock

    create(packages_rpc, needing(f"{new_name}.b", own), **{"requirements.lock": mine})

    assert lock_of(packages_rpc, f"{new_name}.b") == mine


def test_check_skill_tells_the_digest_that_it_would_have(packages_rpc: Rpc, new_name: str) -> None:
    made = needing(new_name, "frames")
    checked = packages_rpc("check_skill", manifest=made, skill_md="# A\n", files=skill_files(CODE))

    assert create(packages_rpc, made)["digest"] == checked["digest"]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dependencies", "reason", "package"),
    [
        (["no-such-package-at-all"], "unknown_package", "no-such-package-at-all"),
        (["frames>=9"], "unsatisfiable", "frames"),
        (["figures>=2", "torn"], "unsatisfiable", "torn"),
        (["elsewhere"], "no_wheel", "elsewhere"),
    ],
)
def test_unresolvable_dependencies_name_the_reason_and_the_package(
    packages_rpc: Rpc, new_name: str, wheelhouse: Path, dependencies: list[str], reason: str, package: str
) -> None:
    error = refused(packages_rpc, needing(new_name, *dependencies))

    assert (error["code"], error["data"]["type"]) == (-32602, "unresolvable_dependencies")
    assert error["data"]["reason"] == reason
    assert package in error["data"]["package"]
    assert package in error["message"]
    assert str(wheelhouse) not in str(error)


def test_a_misspelt_package_is_refused_with_a_suggestion(packages_rpc: Rpc, new_name: str) -> None:
    message = refused(packages_rpc, needing(new_name, "reqeusts"))["message"]
    assert message.startswith("the package reqeusts is unknown here (did you mean 'requests'?)"), message


def test_a_denied_package_is_refused_by_name(packages_rpc: Rpc, new_name: str) -> None:
    error = refused(packages_rpc, needing(new_name, "forbidden"))

    assert (error["code"], error["data"]["findings"][0]["rule"]) == (-32007, "environments")
    assert "forbidden" in error["message"]


GOOD = "frames==1.5 --hash=sha256:" + "0" * 64 + "\n"


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        (GOOD.replace("1.5", "1.0").replace("frames", "figures"), "does not pin frames"),
        (GOOD, "which other packages need"),
        (GOOD.replace("1.5", "2.0"), "pins frames at 2.0"),
        ("frames==1.5\n", "without a hash"),
        ("--index-url https://user:secret@example.org\n" + GOOD, "which is not of the form"),
        (GOOD + GOOD, "pins frames twice"),
        (GOOD + "ghost==1.0 --hash=sha256:" + "0" * 64, "the package ghost is unknown here"),
        (GOOD + "figures==2.0 --hash=sha256:" + "0" * 64, "is not in the package index"),
    ],
)
def test_an_exported_lock_that_does_not_fit_is_refused(packages_rpc: Rpc, new_name: str, lock: str, words: str) -> None:
    error = refused(packages_rpc, needing(new_name, "frames<2"), **{"requirements.lock": lock})

    assert (error["code"], error["data"]["file"]) == (-32602, "requirements.lock")
    assert words in error["message"]


def test_without_dependencies_a_file_of_that_name_is_a_file_like_any(packages_rpc: Rpc, new_name: str) -> None:
    create(packages_rpc, manifest(new_name), **{"requirements.lock": "anything"})

    assert lock_of(packages_rpc, new_name) == "anything"


@pytest.mark.full
def test_an_index_that_is_away_is_an_error_that_shows_no_login(
    start_server: Callable[..., Server], new_name: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        url = f"http://somebody:geheim@localhost:{port}/simple"
        running = start_server(env={"SKILLERY_PACKAGES_INDEX_URLS": url})

        error = refused(running.rpc, needing(new_name, "frames"))

    assert (error["code"], error["data"]["type"]) == (-32603, "package_index_unavailable")
    assert "geheim" not in str(error) + running.log.read_text()
    assert str(port) not in str(error)


def test_an_index_provides_packages_and_its_yanked_releases_are_refused(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.yanked[wheel.name] = "it loses data"

    create(indexed.rpc, needing(f"{new_name}.a", "frames<2"))
    error = refused(indexed.rpc, needing(f"{new_name}.b", f"{own}==1.0"))

    assert pins(lock_of(indexed.rpc, f"{new_name}.a")) == {"frames": "1.5", "figures": "2.0"}
    assert (error["data"]["reason"], error["data"]["package"]) == ("yanked", own)
    assert "it loses data" in error["message"]


@pytest.mark.full
def test_the_pip_index_provides_packages_and_its_login_is_never_stored(
    start_server: Callable[..., Server], new_name: str, package_index: PackageIndex
) -> None:
    server = start_server(env={"PIP_INDEX_URL": package_index.url.replace("//", "//ann:geheim@")})

    create(server.rpc, needing(new_name, "frames<2"))
    lock = lock_of(server.rpc, new_name)
    shown = skillery(
        "config", "show", "--home", str(server.home), PIP_INDEX_URL="https://ann:geheim@example.org/simple"
    )
    server.stop()

    assert pins(lock) == {"frames": "1.5", "figures": "2.0"}
    assert "localhost" not in lock
    assert [path for path in server.home.rglob("*") if path.is_file() and b"geheim" in path.read_bytes()] == []
    assert 'packages.index_urls\t["https://***@example.org/simple"]\tpip' in shown.out


def test_releases_uploaded_after_the_cutoff_date_are_ignored(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    make_wheel(package_index.folder, own, "1.0")
    newer = make_wheel(package_index.folder, own, "1.1")
    package_index.uploaded[newer.name] = "2026-03-01T00:00:00Z"

    create(indexed.rpc, needing(f"{new_name}.a", own))
    error = refused(indexed.rpc, needing(f"{new_name}.b", f"{own}>1.0"))

    assert pins(lock_of(indexed.rpc, f"{new_name}.a")) == {own: "1.0"}
    assert error["data"]["reason"] == "unsatisfiable"


def test_a_slow_index_has_its_own_error(
    configured_server: Callable[..., Server], new_name: str, package_index: PackageIndex
) -> None:
    own = f"slow{new_name}"
    make_wheel(package_index.folder, own, "1.0")
    package_index.slow[own] = 30.0
    settings = {"SKILLERY_PACKAGES_INDEX_URLS": package_index.url, "SKILLERY_PACKAGES_LOCK_SECONDS": "4"}

    error = refused(configured_server(**settings).rpc, needing(new_name, own))

    assert (error["code"], error["data"]["type"]) == (-32603, "package_index_unavailable")
    assert "packages.lock_seconds" in error["data"]["hint"]


def test_an_index_by_its_number_is_refused_at_the_start(start_server: Callable[..., Server]) -> None:
    with pytest.raises(AssertionError, match="names an IP address") as refusal:
        start_server(env={"SKILLERY_PACKAGES_INDEX_URLS": "http://ann:geheim@127.0.0.1:8081/simple"})

    assert "geheim" not in str(refusal.value)


def test_builds_never_meet_the_login_of_an_index(start_server: Callable[..., Server]) -> None:
    asked = {"INDEX_URLS": "http://ann:geheim@localhost:8081/simple", "BUILD_FROM_SOURCE": "*"}

    with pytest.raises(AssertionError, match="contains credentials") as refusal:
        start_server(env={f"SKILLERY_PACKAGES_{name}": value for name, value in asked.items()})

    assert "geheim" not in str(refusal.value)


@pytest.mark.full
def test_a_server_without_uv_says_so(start_server: Callable[..., Server], new_name: str, tmp_path: Path) -> None:
    (tmp_path / "uv.py").write_text("def find_uv_bin():\n    raise FileNotFoundError\n")
    house = tmp_path / "house"
    house.mkdir()
    without_uv = {"PYTHONPATH": str(tmp_path), "PATH": str(house)}
    running = start_server(env={"SKILLERY_PACKAGES_WHEELHOUSE": str(house), **without_uv})

    error = refused(running.rpc, needing(new_name, "frames"))

    assert (error["code"], error["data"]["type"]) == (-32007, "packages_not_offered")
    assert "skillery[packages]" in error["data"]["hint"]


def test_only_allowed_packages_may_come() -> None:
    sources = PackageSources(allowed=("acme-*", "six"), denied=("acme-bad",))

    found = [finding.message for finding in sources.refused(["six", "acme-good", "acme-bad", "other"])]

    assert [message.split()[2] for message in found] == ["acme-bad", "other"]


REAL_INDEX = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX") or "https://pypi.org/simple"


def no_index() -> str:
    """Return why the real package index is unavailable here, or ""."""
    try:
        answer = httpx.get(f"{REAL_INDEX.rstrip('/')}/six/", timeout=10, follow_redirects=True)
    except httpx.HTTPError as error:
        return f"the package index cannot be reached: {type(error).__name__}"
    return "" if answer.status_code == 200 else f"the package index answers {answer.status_code}"


@pytest.mark.full
def test_the_real_package_index_locks_a_skill(start_server: Callable[..., Server], new_name: str) -> None:
    if why := no_index():
        pytest.skip(why)
    running = start_server(env={"SKILLERY_PACKAGES_INDEX_URLS": REAL_INDEX})

    create(running.rpc, needing(new_name, "six>=1.16,<2"))

    assert pins(lock_of(running.rpc, new_name)).keys() == {"six"}


@given(st.binary(max_size=200) | st.text(alphabet="ab=-# \\\n:1.hash", max_size=80).map(str.encode))
def test_any_bytes_are_a_lock_or_an_error(content: bytes) -> None:
    try:
        found = read_lock(content)
    except InvalidLock:
        return
    assert [pin.name for pin in found] == sorted({pin.name for pin in found})


@pytest.mark.parametrize("content", [b"p==1.0" + b" " * 300_000, b"\\\n" * 400_000, b"p==1.0 \\\n" * 40_000])
def test_a_lock_with_an_endless_line_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidLock, match="a line of more than 262144 characters"):
        read_lock(content)
