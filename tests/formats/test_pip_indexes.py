"""The indexes of pip and uv that Skillery uses if its settings name no source of packages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skillery.settings.load import load_settings
from skillery.settings.sources import configured_indexes

OURS, MORE, PYPI = (
    "https://ann:pass@pypi.example.org/simple",
    "https://more.example.org/simple",
    "https://pypi.org/simple",
)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ()),
        ({"PIP_INDEX_URL": OURS}, (OURS,)),
        ({"PIP_INDEX_URL": OURS, "PIP_EXTRA_INDEX_URL": f"{MORE} file:///srv/simple"}, (MORE, OURS)),
        ({"PIP_EXTRA_INDEX_URL": MORE}, (MORE, PYPI)),
        ({"PIP_EXTRA_INDEX_URL": "file:///srv/simple"}, ()),
        ({"PIP_INDEX_URL": "http://127.0.0.1:3141/simple", "PIP_EXTRA_INDEX_URL": MORE}, ()),
        ({"PIP_INDEX_URL": OURS, "PIP_NO_INDEX": "1"}, ()),
        ({"PIP_INDEX_URL": OURS, "PIP_NO_INDEX": "0"}, (OURS,)),
        ({"PIP_INDEX_URL": OURS, "UV_DEFAULT_INDEX": MORE}, (MORE,)),
        ({"UV_INDEX": f"internal={OURS}"}, (OURS, PYPI)),
        ({"PIP_INDEX_URL": "https://[half"}, ()),
    ],
)
def test_the_environment_names_the_indexes(variables: dict[str, str], expected: tuple[str, ...]) -> None:
    assert configured_indexes({"PIP_CONFIG_FILE": os.devnull, **variables}) == expected


def test_the_files_of_pip_name_the_indexes(tmp_path: Path) -> None:
    files = {
        "xdg/pip/pip.conf": "[global]\nindex-url = https://other.example.org/simple\n",
        "home/.pip/pip.conf": f"[global]\nextra-index-url =\n  {MORE}\n  {PYPI}\n",
        "home/.config/pip/pip.conf": f"[global]\nindex-url = {PYPI}\n[install]\nindex-url = {OURS}\n",
        "home/broken.conf": "not a configuration",
        "own.conf": "[global]\nextra-index-url =\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environ = {"XDG_CONFIG_DIRS": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}

    assert configured_indexes(environ) == (MORE, PYPI, OURS)
    assert configured_indexes(environ | {"PIP_CONFIG_FILE": str(tmp_path / "own.conf")}) == (OURS,)
    assert configured_indexes(environ | {"PIP_CONFIG_FILE": str(tmp_path / "home/broken.conf")}) == (MORE, PYPI, OURS)


@pytest.mark.parametrize(
    "more",
    [
        {"SKILLERY_PACKAGES_INDEX_URLS": ""},
        {"SKILLERY_PACKAGES_WHEELHOUSE": "/srv/wheels"},
        {"SKILLERY_PACKAGES_BUILD_FROM_SOURCE": "frames"},
    ],
)
def test_the_settings_win_over_pip(tmp_path: Path, more: dict[str, str]) -> None:
    environ = {"PIP_INDEX_URL": OURS, "PIP_CONFIG_FILE": os.devnull}
    flags = {"home": str(tmp_path)}

    assert load_settings(flags, environ=environ).settings.packages.index_urls == (OURS,)
    assert load_settings(flags, environ=environ | more).settings.packages.index_urls == ()
