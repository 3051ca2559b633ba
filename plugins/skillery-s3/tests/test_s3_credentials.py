"""The chain of credentials: each source, their order, and renewal."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skillery_s3.bucket import USUAL_CHAIN
from skillery_s3.credentials import CredentialChain, Credentials, NoCredentials

ROLE = "/latest/meta-data/iam/security-credentials/"


class Machine:
    """A server that answers as a cloud does: metadata of instances, credentials of containers, and a token service."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[tuple[str, dict[str, str], str]] = []
        machine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
                machine.asked.append((f"{self.command} {self.path}", dict(self.headers.items()), body))
                content = machine.answers.get(f"{self.command} {self.path}")
                self.send_response_only(404 if content is None else 200)
                self.end_headers()
                self.wfile.write(content or b"")

            do_PUT = do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def machine() -> Iterator[Machine]:
    running = Machine()
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def environment(tmp_path: Path, machine: Machine) -> dict[str, str]:
    """An environment without credentials, in a cloud without a role."""
    (tmp_path / ".aws").mkdir()
    return {"HOME": str(tmp_path), "AWS_EC2_METADATA_SERVICE_ENDPOINT": machine.url}


def found(environment: dict[str, str]) -> Credentials:
    return CredentialChain(USUAL_CHAIN, environment).find()


def answer(key: str, hours: float = 6, **more: str) -> dict[str, str]:
    expires = (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
    return {"AccessKeyId": key, "SecretAccessKey": "secret", "Expiration": expires, **more}


def write(environment: dict[str, str], name: str, text: str) -> None:
    (Path(environment["HOME"]) / ".aws" / name).write_text(text)


def test_variables_come_first(environment: dict[str, str]) -> None:
    write(environment, "credentials", "[default]\naws_access_key_id = file\naws_secret_access_key = secret\n")
    environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}

    assert found(environment) == Credentials("key", "secret", "token")


@pytest.mark.parametrize(
    ("files", "profile", "key"),
    [
        ({"credentials": "[default]"}, "", "credentials"),
        ({"config": "[default]"}, "", "config"),
        ({"config": "[default]", "credentials": "[default]"}, "", "credentials"),
        ({"credentials": "[work]"}, "work", "credentials"),
        ({"config": "[profile work]"}, "work", "config"),
    ],
)
def test_profiles_are_read(environment: dict[str, str], files: dict[str, str], profile: str, key: str) -> None:
    for name, section in files.items():
        write(environment, name, f"{section}\naws_access_key_id = {name}\naws_secret_access_key = secret\n")
    if profile:
        environment["AWS_PROFILE"] = profile

    assert found(environment).access_key == key


def test_a_process_may_print_credentials(environment: dict[str, str]) -> None:
    printed = Path(environment["HOME"]) / "printed.json"
    printed.write_text(json.dumps(answer("printed", SessionToken="token")))
    write(environment, "config", f"[default]\ncredential_process = cat {printed}\n")

    assert (found(environment).access_key, found(environment).token) == ("printed", "token")


def test_a_web_identity_is_exchanged(environment: dict[str, str], machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("jwt\n")
    texts = "".join(f"<{name}>{text}</{name}>" for name, text in answer("web", SessionToken="token").items())
    whole = f'<R xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><X><Credentials>{texts}</Credentials></X></R>'
    machine.answers["POST /"] = whole.encode()
    environment |= {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": "arn:role"}
    environment |= {"AWS_ENDPOINT_URL_STS": machine.url}

    assert (found(environment).access_key, found(environment).token) == ("web", "token")
    assert "WebIdentityToken=jwt" in machine.asked[0][2]
    assert "RoleArn=arn%3Arole" in machine.asked[0][2]


def test_a_container_gives_credentials(environment: dict[str, str], machine: Machine) -> None:
    machine.answers["GET /here"] = json.dumps(answer("container", Token="token")).encode()
    environment |= {"AWS_CONTAINER_CREDENTIALS_FULL_URI": machine.url + "/here"}
    environment |= {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "permit"}

    assert found(environment).access_key == "container"
    assert machine.asked[0][1]["authorization"] == "permit"


def test_an_instance_gives_credentials(environment: dict[str, str], machine: Machine) -> None:
    machine.answers |= {"PUT /latest/api/token": b"session", f"GET {ROLE}": b"my-role"}
    machine.answers[f"GET {ROLE}my-role"] = json.dumps(answer("instance", Token="token")).encode()

    assert found(environment).access_key == "instance"
    assert machine.asked[-1][1]["x-aws-ec2-metadata-token"] == "session"


def test_credentials_are_kept_until_shortly_before_they_expire(environment: dict[str, str], machine: Machine) -> None:
    environment |= {"AWS_CONTAINER_CREDENTIALS_FULL_URI": machine.url + "/here"}
    chain = CredentialChain(USUAL_CHAIN, environment)
    for key, hours in (("first", 6.0), ("unused", 6.0)):
        machine.answers["GET /here"] = json.dumps(answer(key, hours)).encode()
        assert chain.find().access_key == "first"
    old = CredentialChain(USUAL_CHAIN, environment)
    for key, hours in (("first", 0.05), ("renewed", 6.0)):
        machine.answers["GET /here"] = json.dumps(answer(key, hours)).encode()
        assert old.find().access_key == key


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"AWS_PROFILE": "absent"}, "the profile 'absent'"),
        ({"AWS_CONFIG_FILE": "BROKEN"}, "is not a file of AWS profiles"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere", "AWS_ROLE_ARN": "arn"}, "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/x"}, "cannot be reached"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "MACHINE"}, "answered 404"),
        ({}, "there are no credentials"),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, "there are no credentials"),
    ],
)
def test_a_faulty_source_is_named(
    environment: dict[str, str], machine: Machine, tmp_path: Path, broken: dict[str, Any], said: str
) -> None:
    (tmp_path / "broken").write_text("no section")
    places = {"BROKEN": str(tmp_path / "broken"), "MACHINE": machine.url + "/absent"}

    with pytest.raises(NoCredentials, match=said):
        found(environment | {name: places.get(value, value) for name, value in broken.items()})


def test_a_printed_record_shows_no_secret() -> None:
    assert "secret" not in repr(Credentials("key", "secret", "token"))
