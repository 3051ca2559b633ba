"""Plugins with settings and commands: the hooks `skillery_plugin` and `commands`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.test_plugins import folder, refusal
from tests.cli.test_cli import Ended, skillery
from tests.conftest import Server, manifest, skill_files

WORDS = """
    from pathlib import Path

    class WordSettings(NoSettings, frozen=True, forbid_unknown_fields=True):
        word: str = "FORBIDDEN"
        severity: dict[str, str] = {}

    class Words:
        def __init__(self, settings, place):
            self.settings, self.place = settings, place

        @hookimpl
        def before_publish(self, publication: Publication) -> list[Finding]:
            if publication.name == "ask.popular":
                return [Finding("popular", " ".join(self.place.popular_skills(3)), "info")]
            if publication.name == "ask.values":
                return [Finding("values", self.place.values.add("key", b"kept").decode(), "info")]
            severity = self.settings.severity.get(publication.name, "error")
            code = b"".join(file.content for file in publication.files)
            return [Finding("word", self.settings.word, severity)] if self.settings.word.encode() in code else []

        def close(self):
            self.place.home.joinpath("closed").write_text("yes")

    @hookimpl
    def skillery_plugin() -> Offer:
        return Offer("words", Words, WordSettings)
"""
BAD_CODE = "def main(args): return 'ROTTEN'\n"


def command(env: dict[str, str], *arguments: str) -> Ended:
    return skillery(*arguments, stdin=b"", **env)


def publish(server: Server, name: str, code: str = BAD_CODE) -> dict[str, object]:
    params = {"manifest": manifest(name), "skill_md": "# A", "files": skill_files(code)}
    reply: dict[str, object] = server.rpc.send("create_skill", params)
    return reply


def finding_of(server: Server, name: str) -> str:
    """Return the message of the one finding of a skill."""
    publish(server, name)
    found: list[dict[str, str]] = server.rpc("describe_skill", name=name)["skill"]["findings"]
    assert len(found) == 1
    return found[0]["message"]


@pytest.mark.full
def test_an_object_gets_its_settings_its_place_and_an_end(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('[plugins.words]\nword = "ROTTEN"\nseverity = {"spared.skill" = "warning"}\n')
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=WORDS), "SKILLERY_CONFIG": str(settings)}
    server = start_server(env=env)

    assert "error" in publish(server, "refused.skill")
    assert finding_of(server, "spared.skill") == "ROTTEN"
    assert finding_of(server, "ask.values") == "kept"
    server.rpc("execute_skill", name="spared.skill")
    assert finding_of(server, "ask.popular").split()[0] == "spared.skill"
    assert server.stop() == 0
    assert (server.home / "closed").read_text() == "yes"


def test_a_variable_sets_a_setting_of_a_plugin(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=WORDS), "SKILLERY_PLUGINS_WORDS_WORD": "ROTTEN"}

    assert "error" in publish(start_server(env=env), "refused.skill")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("[plugins.words]\nwrod = 'x'\n", "[plugins.words]: unknown setting 'wrod' (did you mean 'word'?)"),
        ("[plugins.words]\nword = []\n", "[plugins.words]: word: write a text in quotes"),
        ("[plugins.wrods]\nword = 'x'\n", "[plugins.wrods]: no installed plugin has this name"),
        ("plugins = 3\n", "'plugins' must be a table"),
        ("plugins.words = 3\n", "the sections [plugins.<name>] are not valid"),
    ],
)
def test_a_wrong_setting_of_a_plugin_stops_the_start(tmp_path: Path, section: str, said: str) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(section)
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=WORDS), "SKILLERY_CONFIG": str(settings)}

    assert said in refusal(tmp_path, **env)


def test_an_object_without_a_section_is_not_opened(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=WORDS)}

    assert "result" in publish(start_server(env=env), "any.skill", "def main(args): return 'FORBIDDEN'\n")
    (shown,) = (one for one in command(env, "plugins", "--json").json["plugins"] if one["name"] == "mine")
    assert shown["offers"] == [{"kind": "plugin", "name": "words", "chosen": False, "unsafe": False}]


def test_a_variable_without_a_setting_is_refused(tmp_path: Path) -> None:
    assert "SKILLERY_PLUGINS_<NAME>_<SETTING>" in refusal(tmp_path, SKILLERY_PLUGINS_WORDS="x")


@pytest.mark.parametrize("method", ["befor_publish(self, publication)", "skillery_storage(self)"])
def test_an_object_with_another_hook_stops_the_start(tmp_path: Path, method: str) -> None:
    source = f"""
        class Words:
            @hookimpl
            def {method}: ...

        @hookimpl
        def skillery_plugin() -> Offer:
            return Offer("words", lambda settings, place: Words())
    """
    settings = tmp_path / "settings.toml"
    settings.write_text("[plugins.words]\n")
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=source), "SKILLERY_CONFIG": str(settings)}
    line = refusal(tmp_path, **env)

    assert "plugin 'words'" in line
    assert method.partition("(")[0] in line


COMMANDS = """
    import click
    from skillery.commands import CheckFailed, json_option, print_json, target_options, with_client
    from skillery.errors import SkillNotFound

    @click.command()
    @click.argument("name")
    @target_options
    @json_option
    def shout(name, target, as_json):
        "Print the name of a skill in capitals."
        if name == "fail":
            raise CheckFailed("it failed")
        found = with_client(target, lambda client: client.describe_skill(name))
        if as_json:
            print_json({"name": found["skill"]["name"].upper()})
        else:
            click.echo(found["skill"]["name"].upper())

    @hookimpl
    def commands() -> list[click.Command]:
        return [shout]
"""


@pytest.mark.full
def test_a_plugin_command_has_the_usual_options_errors_and_exit_codes(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=COMMANDS)}
    server = start_server()
    home = ("--home", str(tmp_path / "own"))

    assert command(env, "shout", "text.csv.profile", "--url", server.url).out == "TEXT.CSV.PROFILE\n"
    assert command(env, "shout", "text.csv.profile", "--json", *home).json == {"name": "TEXT.CSV.PROFILE"}
    assert "Print the name of a skill in capitals." in command(env, "--help").out
    unknown = command(env, "shout", "no.such", "--url", server.url)
    assert (unknown.code, "no.such" in unknown.err) == (3, True)
    assert command(env, "shout", "fail").code == 1
    assert skillery("shout", "x").code == 2


def test_the_home_option_selects_the_plugin_commands(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "skillery.toml").write_text(f'plugins_folder = "{folder(tmp_path, mine=COMMANDS)}"\n')

    assert skillery("shout", "fail", "--home", str(home)).code == 1
    assert skillery("shout", "fail").code == 2


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("[click.Command('list')]", "adds the command 'list', which Skillery has already"),
        ("[click.Command('a'), click.Command('a')]", "adds the command 'a', which the plugin 'mine' has already"),
        ("['a']", "must return a list of click commands"),
        ("1 / 0", "failed to add commands: division by zero"),
    ],
)
@pytest.mark.full(after=3)
def test_a_wrong_command_is_an_error_that_names_the_plugin(tmp_path: Path, made: str, said: str) -> None:
    source = f"""
        import click

        @hookimpl
        def commands():
            return {made}
    """
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=source)}
    done = command(env, "nothing")

    assert done.code == 4
    assert f"plugin 'mine' {said}" in done.err
    assert command(env, "list", "--help").code == 0
    helped = command(env, "--help")
    assert (helped.code, said in helped.err) == (0, True)
