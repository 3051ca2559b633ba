"""Manifests: one error lists all problems, unusual values are warnings. Also the arguments of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.errors import InvalidManifest
from skillery.formats.inputs import Input, InputInvalid, apply_inputs, blob_args, with_usage
from skillery.formats.manifest import manifest_toml, parse_manifest, same_manifest, toml_manifest
from skillery.formats.semver import Version

LEAST: dict[str, Any] = {"name": "sales.leads.sync", "version": "0.1.0", "description": "Sync leads."}
FULL: dict[str, Any] = {
    **LEAST,
    "kind": "action",
    "namespace": "sales",
    "tags": ["crm", "leads"],
    "runtime": {
        "language": "python",
        "entrypoint": "code/main.py",
        "export": "run",
        "limits": {"cpus": 0.5, "memory_mb": 64},
    },
    "inputs": {
        "sheet": {"type": "blob", "description": "The sheet", "required": True},
        "env": {"type": "string", "enum": ["prod", "test"], "default": "test"},
    },
    "permissions": {
        "network": ["https://*.Salesforce.com", "http://localhost:8080"],
        "secrets": ["API_KEY", "API_KEY"],
    },
    "tests": [{"args": {}}],
    "examples": [],
}


def problems(raw: dict[str, Any], *, has_tools: bool = False) -> dict[str, str]:
    with pytest.raises(InvalidManifest) as caught:
        parse_manifest(raw, has_tools=has_tools)
    error = caught.value
    assert error.hint
    json.dumps(error.data).encode()
    assert error.message.startswith(error.data["problems"][0]["message"])
    return {each.get("path", ""): each["message"] for each in error.data["problems"]}


def test_a_full_manifest_becomes_values() -> None:
    manifest = parse_manifest(FULL)
    assert (manifest.name, manifest.version, manifest.namespace) == ("sales.leads.sync", Version(0, 1, 0), "sales")
    assert (manifest.kind, manifest.tags, manifest.warnings) == ("action", ("crm", "leads"), ())
    assert manifest.runtime is not None
    assert (manifest.runtime.entrypoint, manifest.runtime.export) == ("code/main.py", "run")
    assert manifest.runtime.limits == {"cpus": 0.5, "memory_mb": 64}
    assert manifest.inputs["env"] == Input("string", "", ("prod", "test"), "test", has_default=True)
    star, local = manifest.permissions.network
    assert (star.scheme, star.host, star.port, star.wildcard) == ("https", "salesforce.com", 443, True)
    assert star.text == "https://*.salesforce.com"
    assert (local.host, local.port, local.text) == ("localhost", 8080, "http://localhost:8080")
    assert manifest.permissions.secrets == ("API_KEY",)
    assert manifest.raw == FULL


def test_omitted_manifest_fields_have_defaults() -> None:
    manifest = parse_manifest(LEAST)
    assert (manifest.kind, manifest.namespace, manifest.runtime) == ("instruction", "sales.leads", None)
    assert parse_manifest({**LEAST, "name": "greet"}).namespace == ""
    runtime = parse_manifest({**LEAST, "runtime": {"entrypoint": "main.py"}}).runtime
    assert runtime is not None
    assert (runtime.language, runtime.export, runtime.limits) == ("python", "main", {})


def test_kind_follows_from_entrypoint_and_tools() -> None:
    assert parse_manifest({**LEAST, "runtime": {"entrypoint": "main.py"}}).kind == "action"
    assert parse_manifest(LEAST, has_tools=True).kind == "action"
    assert parse_manifest({**LEAST, "kind": "action"}, has_tools=True).runtime is None
    assert "kind" in problems({**LEAST, "kind": "action"})
    instruction = parse_manifest({**FULL, "kind": "instruction"})
    assert (instruction.kind, instruction.called) == ("instruction", None)
    assert "entrypoint is ignored" in instruction.warnings[0]
    assert "kind" in problems({**LEAST, "kind": "acton"})


def test_all_problems_are_reported_at_once() -> None:
    found = problems(
        {"name": "A b", "version": "1", "kind": 1, "runtime": {"entrypoint": "../x", "export": "class"}, "tags": "x"}
    )
    assert {"name", "version", "description", "kind", "runtime.entrypoint", "runtime.export", "tags"} <= set(found)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": 1}, "name"),
        ({"version": 1.0}, "version"),
        ({"description": "  "}, "description"),
        ({"description": "x" * 1025}, "description"),
        ({"description": "a\x07b"}, "description"),
        ({"description": "a\x00b"}, "description"),
        ({"description": None}, "description"),
        ({"namespace": "Sales"}, "namespace"),
        ({"tags": ["a", 1]}, "tags[1]"),
        ({"tags": [""]}, "tags[0]"),
        ({"tags": ["a"] * 33}, "tags"),
        ({"runtime": []}, "runtime"),
        ({"runtime": {}}, "runtime.entrypoint"),
        ({"runtime": {"entrypoint": "code/main.js"}}, "runtime.entrypoint"),
        ({"runtime": {"entrypoint": "/main.py"}}, "runtime.entrypoint"),
        ({"runtime": {"entrypoint": "m.py", "language": "ruby"}}, "runtime.language"),
        ({"runtime": {"entrypoint": "m.py", "export": "a.b"}}, "runtime.export"),
        ({"runtime": {"entrypoint": "m.py", "limits": {"cpus": True}}}, "runtime.limits.cpus"),
        ({"runtime": {"entrypoint": "m.py", "limits": {"memory_mb": 1.5}}}, "runtime.limits.memory_mb"),
        ({"runtime": {"entrypoint": "m.py", "limits": {"processes": 0}}}, "runtime.limits.processes"),
        ({"runtime": {"entrypoint": "m.py", "limits": {"timeout_ms": 3_600_001}}}, "runtime.limits.timeout_ms"),
        ({"inputs": {"a": {"type": "integer", "default": True}}}, "inputs.a.default"),
        ({"inputs": {"a": {"type": "integer", "enum": [1, "2"]}}}, "inputs.a.enum[1]"),
        ({"inputs": {"a": {"type": "integer", "enum": []}}}, "inputs.a.enum"),
        ({"inputs": {"a": {"type": "any", "enum": [1], "default": True}}}, "inputs.a.default"),
        ({"inputs": {"a": {"type": "string", "required": 1}}}, "inputs.a.required"),
        ({"inputs": {"": {"type": "string"}}}, "inputs."),
        ({"permissions": {"secrets": ["A-B"]}}, "permissions.secrets[0]"),
        ({"permissions": {"network": "https://x.com"}}, "permissions.network"),
        ({"x": {"y": [1, None]}}, "x.y[1]"),
        ({"x": float("nan")}, "x"),
        ({"x": float("inf")}, "x"),
        ({"x": 2**63}, "x"),
        ({"x": "\ud800"}, "x"),
        ({"x": object()}, "x"),
        ({"x": {1: 2}}, "x.1"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(change: dict[str, Any], path: str) -> None:
    assert path in problems({**LEAST, **change})


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "https://*",
        "https://*.",
        "https://",
        "https://127.0.0.1",
        "https://127.1",
        "https://2130706433",
        "https://0x7f000001",
        "https://0x7f.1",
        "https://1.2.3.0x4",
        "https://[::1]",
        "https://a.1",
        "https://*.0.0.1",
        "https://x.com/",
        "https://x.com/path",
        "https://x.com?q",
        "https://x.com#f",
        "https://u@x.com",
        "https://u:p@x.com",
        "https://x.com:0",
        "https://x.com:65536",
        "https://x.com:",
        "https://x.com:080",
        "ftp://x.com",
        "//x.com",
        "https://a.*.com",
        "https://*x.com",
        "https://*.*.com",
        "https://-a.com",
        "https://a-.com",
        "https://a..com",
        "https://x.com.",
        "https://ü.com",
        "https://x_y.com",
        "https://x y.com",
        " https://x.com",
        "https://x.com\\y",
        "https://" + "a" * 64 + ".com",
        "https://" + "a." * 127 + "com",
        "https://1.2.3.4.",
    ],
)
def test_a_network_pattern_is_scheme_host_and_port_only(pattern: str) -> None:
    read = parse_manifest({**LEAST, "permissions": {"network": [pattern]}})
    assert read.permissions.network == ()
    assert "allows nothing" in read.warnings[0]


def test_network_entry_with_a_path_warns_and_suggests_the_whole_host() -> None:
    given = ["https://x.com/api", "y.com/", "http://z.com:8080?q"]
    warnings = parse_manifest({**LEAST, "permissions": {"network": given}}).warnings
    assert [warning.split("write ")[1] for warning in warnings] == [
        "'https://x.com' to allow the whole host",
        "'https://y.com' to allow the whole host",
        "'http://z.com:8080' to allow the whole host",
    ]


def test_network_host_without_a_scheme_defaults_to_https() -> None:
    read = parse_manifest({**LEAST, "permissions": {"network": ["api.x.com", "*.y.com:8443"]}})
    assert [pattern.text for pattern in read.permissions.network] == ["https://api.x.com", "https://*.y.com:8443"]
    assert "means 'https://api.x.com'" in read.warnings[0]


@pytest.mark.parametrize(
    "declared", [{"type": "file"}, {"description": "The sheet"}, "The sheet", {"type": ["string"]}]
)
def test_an_input_of_an_unknown_type_takes_any_value(declared: object) -> None:
    read = parse_manifest({**LEAST, "inputs": {"sheet": declared}})
    assert read.inputs["sheet"].type == "any"
    assert "any value is passed" in read.warnings[0]


@pytest.mark.parametrize("host", ["com", "co.uk", "com.au", "github.io", "blob.core.windows.net"])
def test_network_wildcard_below_a_public_suffix_warns(host: str) -> None:
    manifest = parse_manifest({**LEAST, "permissions": {"network": [f"https://*.{host}"]}})
    assert manifest.warnings == (
        f"permissions.network[0]: strangers can register names below '{host}'; list the hosts",
    )


@pytest.mark.parametrize("host", ["*.example.com", "github.io", "*.acme.github.io", "*.acme.co.uk", "*.example.de"])
def test_a_wildcard_over_ones_own_domain_is_not(host: str) -> None:
    assert parse_manifest({**LEAST, "permissions": {"network": [f"https://{host}"]}}).warnings == ()


@pytest.mark.parametrize(
    "pattern",
    ["https://x.com", "HTTPS://X.COM:443", "http://a.b-c.d9:80", "https://xn--bcher-kva.example", "https://1a.2b"],
)
def test_dns_names_are_accepted(pattern: str) -> None:
    (parsed,) = parse_manifest({**LEAST, "permissions": {"network": [pattern]}}).permissions.network
    assert parsed.text == pattern.lower().removesuffix(":443").removesuffix(":80")


def test_unknown_manifest_keys_are_kept_and_warn_with_suggestions() -> None:
    raw = {
        **FULL,
        "desciption": "x",
        "runtime": {"entrypoint": "m.py", "exports": "x"},
        "inputs": {"a": {"type": "any", "typ": 1}},
    }
    manifest = parse_manifest(raw)
    assert manifest.raw == raw
    text = "\n".join(manifest.warnings)
    assert "desciption (did you mean 'description'?)" in text
    assert "runtime.exports (did you mean 'export'?)" in text
    assert "inputs.a.typ (did you mean 'type'?)" in text


@pytest.mark.parametrize("name", ["team.class", "3d.print", "a.import.b"])
def test_a_segment_that_python_cannot_import_by_name_is_a_warning(name: str) -> None:
    assert len(parse_manifest({**LEAST, "name": name}).warnings) == 1


def test_depth_and_size_are_capped() -> None:
    nested: Any = "x"
    for _ in range(100_000):
        nested = [nested]
    assert "nested deeper" in next(iter(problems({**LEAST, "x": nested}).values()))
    assert "bytes of JSON" in problems({**LEAST, "x": "y" * 300_000})[""]
    assert len(problems({**LEAST, "x": {str(i): None for i in range(10_000)}})) <= 50
    while nested != "x":  # freeing the whole nesting at once would recurse
        nested = nested[0]


def test_the_manifest_is_a_copy() -> None:
    raw = {**LEAST, "x": {"y": [1]}}
    manifest = parse_manifest(raw)
    raw["x"]["y"].append(2)
    assert manifest.raw["x"] == {"y": [1]}


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
known_keys = st.sampled_from([*FULL, "limits", "entrypoint", "type", "enum", "default", "network", "secrets", "x"])
near_values = st.recursive(
    st.one_of(json_values, st.sampled_from(["python", "string", "action", "code/main.py", "https://x.com", "1.0.0"])),
    lambda inner: st.dictionaries(known_keys, inner, max_size=5),
    max_leaves=8,
)


@pytest.mark.smoke
@given(st.one_of(st.dictionaries(known_keys, near_values), near_values.map(lambda value: {**LEAST, "inputs": value})))
def test_any_object_is_a_manifest_or_a_list_of_problems(raw: dict[str, Any]) -> None:
    try:
        manifest = parse_manifest(raw)
    except InvalidManifest as error:
        json.dumps(error.data, ensure_ascii=False).encode()
        error.message.encode()
    else:
        assert same_manifest(toml_manifest(manifest_toml(manifest.raw)), manifest.raw)


# -- skill.toml --------------------------------------------------------------------------------------------------


def test_skill_toml_has_the_same_bytes_in_every_release() -> None:
    raw = {
        "x": {"a": 1},
        "permissions": {"secrets": ["K"]},
        "inputs": {"n": {"type": "integer", "default": 1}},
        "y": True,
        "runtime": {"entrypoint": "code/main.py", "limits": {"cpus": 1.5}},
        "tags": ["a", "b"],
        "namespace": "t",
        "kind": "action",
        "description": 'Say "hi"\nä\t\x7f',
        "version": "1.0.0",
        "name": "t.s",
        "z": [[1], {"k": []}],
        "f": 1e300,
        "q.r": "s",
    }
    assert manifest_toml(raw).decode() == (
        'name = "t.s"\nversion = "1.0.0"\ndescription = "Say \\"hi\\"\\nä\t\\u007f"\nkind = "action"\nnamespace = "t"\n'
        'tags = [\n    "a",\n    "b",\n]\ny = true\n'
        'z = [\n    [\n        1,\n    ],\n    { k = [] },\n]\nf = 1e+300\n"q.r" = "s"\n\n'
        '[runtime]\nentrypoint = "code/main.py"\n\n[runtime.limits]\ncpus = 1.5\n\n[inputs.n]\ntype = "integer"\n'
        'default = 1\n\n[permissions]\nsecrets = [\n    "K",\n]\n\n[x]\na = 1\n'
    )


def test_the_order_of_known_keys_does_not_count() -> None:
    assert manifest_toml(FULL) == manifest_toml({key: FULL[key] for key in ("tests", "examples", *reversed(FULL))})


def test_dates_become_text() -> None:
    assert toml_manifest(b"\xef\xbb\xbfa = 2024-01-02\nb = [2024-01-02T03:04:05Z]\n") == {
        "a": "2024-01-02", "b": ["2024-01-02T03:04:05+00:00"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a = 1\nb = \n", 2),
        (b"a = 1\n\xff", 2),
        (b"a = 1\na = 2", None),
        (b"a = " + b"[" * 100_000, None),
        (b"a = " + b"1" * 10_000, None),
        (b"x = 1\n" + b"a." * 100_000 + b"a = 1", 2),
        (b"'a b'." * 50_000 + b"a = 1", 1),
        (b"[" + b'"a\\"b" . ' * 40 + b"c]", 1),
        (b"#" * 600_000, None),
    ],
)
def test_broken_toml_is_refused_with_file_and_line(data: bytes, line: int | None) -> None:
    with pytest.raises(InvalidManifest) as caught:
        toml_manifest(data)
    assert caught.value.data["file"] == "skill.toml"
    assert line is None or caught.value.data["line"] == line


@given(st.one_of(st.binary(), st.text(alphabet="ab=.[]{}\"'\n 10:-T,#\\", max_size=40).map(str.encode)))
def test_any_bytes_are_toml_or_a_clear_error(data: bytes) -> None:
    try:
        toml_manifest(data)
    except InvalidManifest as error:
        error.message.encode()


def test_two_manifests_say_the_same_by_value() -> None:
    assert same_manifest({"a": 1, "b": [1.0]}, {"b": [1], "a": 1.0})
    for one, other in [(1, True), (0, False), ("1", 1), ([1], [1, 2]), ({}, []), ("a", "b"), ({"x": 1}, {"y": 1})]:
        assert not same_manifest({"a": one}, {"a": other})


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "right", "wrong"),
    [
        ("string", ["", "a"], [1, True, None, [], {}]),
        ("blob", ["blob:x"], [1, None]),
        ("integer", [1, -1, 2**70, 3.0], [1.5, True, "1", None]),
        ("number", [1, 1.5], [True, "1", None]),
        ("boolean", [True, False], [0, 1, "true", None]),
        ("array", [[], [1]], [{}, "a", None]),
        ("object", [{}, {"a": None}], [[], "a", None]),
        ("any", [None, 1, "a", [], {}, True], []),
    ],
)
def test_an_argument_is_of_the_declared_type(type_: Any, right: list[object], wrong: list[object]) -> None:
    for value in right:
        assert apply_inputs({"x": Input(type_)}, {"x": value}) == {"x": value}
    for value in wrong:
        with pytest.raises(InputInvalid, match="'x'"):
            apply_inputs({"x": Input(type_)}, {"x": value})


def test_missing_arguments_get_their_defaults() -> None:
    inputs = {"a": Input("integer", default=3, has_default=True), "b": Input("any", default=None, has_default=True)}
    assert apply_inputs(inputs, {"c": 1}) == {"c": 1, "a": 3, "b": None}
    assert apply_inputs(inputs, {"a": 4, "b": 5}) == {"a": 4, "b": 5}


def test_an_integer_arrives_as_an_integer() -> None:
    assert type(apply_inputs({"x": Input("integer")}, {"x": 2.0})["x"]) is int


def test_missing_and_unlisted_arguments_are_named() -> None:
    with pytest.raises(InputInvalid, match=r"Missing argument 'x'.*type string: Who"):
        apply_inputs({"x": Input("string", "Who", required=True)}, {})
    with pytest.raises(InputInvalid, match=r"'x' is true, allowed are: 1, 2"):
        apply_inputs({"x": Input("any", enum=(1, 2))}, {"x": True})


def test_wrong_arguments_are_reported_together_with_a_correct_call() -> None:
    inputs = {
        "top": Input("integer", default=3, has_default=True),
        "mode": Input("string", enum=("fast", "slow")),
        "text": Input("string", "What to count", required=True),
        "at": Input("blob", required=True),
    }
    args = {"top": "7", "mode": "x", "at": "blob:1", "other": 1}
    with pytest.raises(InputInvalid) as caught:
        apply_inputs(inputs, args)

    assert with_usage(caught.value, "acme.count", inputs, args).splitlines() == [
        "Argument 'top' is a string (\"7\"), expected type integer.",
        'Argument \'mode\' is "x", allowed are: "fast", "slow".',
        "Missing argument 'text': it is required (type string: What to count).",
        "Argument 'other' is not declared. The skill may ignore it.",
        'Inputs: text: string, at: blob, top?: integer = 3, mode?: "fast"|"slow"',
        'A correct call: {"name":"acme.count","args":{"at":"blob:1","top":3,"mode":"fast","text":"text"}}',
    ]


@pytest.mark.parametrize("count", [1, 3, 400])
def test_the_message_about_wrong_arguments_is_limited(count: int) -> None:
    inputs = {f"{'x' * 200}{number}": Input("string", "y" * 500, required=True) for number in range(count)}
    args = {f"undeclared{number}": number for number in range(100_000)}
    with pytest.raises(InputInvalid) as caught:
        apply_inputs(inputs, args, strict=True)

    text = with_usage(caught.value, "a.b", inputs, args)
    assert len(text) <= 1000
    assert "\nInputs: " in text
    assert '\nA correct call: {"name":"a.b"' in text


def test_blob_arguments_are_detected_by_their_declared_type() -> None:
    inputs = {"a": Input("blob"), "b": Input("string"), "c": Input("blob")}
    assert blob_args(inputs, {"a": "blob:1", "b": "blob:2", "d": "blob:3"}) == ["blob:1"]
