"""`skillery plugins list` and `show`: origin, kinds, settings, capabilities and health of plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.app.test_plugins import folder
from tests.cli.test_cli import skillery

SHELF = """
    from typing import Annotated
    import msgspec

    api_version = 1

    class ShelfSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        folder: str
        "The folder of the contents."
        password: str = ""
        secret_id_file: str = ""
        key_days: int = 3
        accounts: dict[str, str] = {}
        depth: Annotated[int, msgspec.Meta(description="Levels of folders.")] = 2

    class Shelf:
        def __init__(self, settings, place): self.folder = settings.folder
        def begin(self): ...
        def open(self, digest): ...
        def local_path(self, digest): ...
        def delete(self, digest): ...
        def check(self):
            if self.folder == "broken": raise ValueError("the shelf is\\nbroken")

    @hookimpl
    def skillery_storage() -> Offer:
        return Offer("shelf", Shelf, ShelfSettings)
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    settings = tmp_path / "settings.toml"
    settings.write_text(
        'storage = "shelf"\n[backends.storage.shelf]\nfolder = "x"\npassword = "hunter2"\nsecret_id_file = "/run/id"\n'
        'accounts = {"api_key" = "hunter3", "name" = "ann"}\n'
    )
    plugins = folder(tmp_path, myshelf=SHELF)
    return {"SKILLERY_PLUGINS_FOLDER": plugins, "SKILLERY_CONFIG": str(settings), "SKILLERY_HOME": str(tmp_path / "h")}


def shown(name: str, env: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = skillery("plugins", "show", name, "--json", stdin=b"", **env).json
    return found


def test_show_names_settings_with_values_defaults_and_docs_but_no_secret(env: dict[str, str]) -> None:
    found = shown("myshelf", env)
    settings = {one["name"]: one for one in found["settings"]}

    assert (found["kinds"], found["active"], found["api_version"], found["version"]) == (["storage"], True, 1, None)
    assert found["path"].endswith("myshelf.py")
    assert settings["folder"] == {
        "section": "backends.storage.shelf",
        "name": "folder",
        "type": "str",
        "required": True,
        "default": None,
        "value": "x",
        "description": "The folder of the contents.",
    }
    assert settings["password"]["value"] == "***"
    assert settings["secret_id_file"]["value"] == "/run/id"
    assert settings["accounts"]["value"] == {"api_key": "***", "name": "ann"}
    assert (settings["key_days"]["default"], settings["depth"]["description"]) == (3, "Levels of folders.")
    text = skillery("plugins", "show", "shelf", stdin=b"", **env)
    assert "hunter" not in text.out + text.err + str(found)
    assert 'backends.storage.shelf.folder\t"x"\trequired\tThe folder of the contents.\n' in text.out


def test_show_checks_the_health_of_active_backends(env: dict[str, str]) -> None:
    assert shown("myshelf", env)["health"] == [
        {"kind": "storage", "name": "shelf", "ok": True, "detail": "its check succeeds"}
    ]
    broken = shown("myshelf", env | {"SKILLERY_BACKENDS_STORAGE_SHELF_FOLDER": "broken"})
    assert broken["health"] == [
        {"kind": "storage", "name": "shelf", "ok": False, "detail": "ValueError: the shelf is broken"}
    ]
    assert shown("directory-storage", env)["health"] == []
    assert "isolation" in shown("linux-sandbox", env)["capabilities"]
    for name in ("open", "database", "scanner"):
        assert all(one["ok"] for one in shown(name, env)["health"]), name


def test_list_is_the_default_and_shows_origin_and_state(env: dict[str, str]) -> None:
    listed = skillery("plugins", "list", "--json", stdin=b"", **env).json
    rows = {one["name"]: one for one in listed["plugins"]}

    assert skillery("plugins", "--json", stdin=b"", **env).json == listed
    assert skillery("plugins", stdin=b"", **env).out == skillery("plugins", "list", stdin=b"", **env).out
    assert (rows["s3"]["package"], rows["s3"]["kinds"], rows["s3"]["active"]) == ("skillery-s3", ["storage"], False)
    assert rows["directory-storage"]["active"] is False
    assert rows["scanner"]["kinds"] == ["events", "commands"]
    assert rows["scanner"]["active"] is False


def test_an_unknown_plugin_is_refused_with_the_known_ones(env: dict[str, str]) -> None:
    refused = skillery("plugins", "show", "shelff", stdin=b"", **env)

    assert refused.code == 2
    assert "no plugin 'shelff'" in refused.err
    assert "myshelf" in refused.err
