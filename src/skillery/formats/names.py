"""Skill names and namespaces: segments with dots between. Comparisons use whole segments."""

from __future__ import annotations

import hashlib
import re

from skillery.errors import InvalidName, InvalidParams
from skillery.formats.wording import quoted

MAX_LENGTH = 128
MOST_IN_INDEX, _DIGEST_LENGTH = 64, 8

_SEGMENT = r"[a-z0-9]+(?:[_-][a-z0-9]+)*"
PATTERN = rf"{_SEGMENT}(?:\.{_SEGMENT})*"
_NAME = re.compile(PATTERN)
_GRAMMAR = (
    "dot-separated segments of a-z and 0-9, with single '_' or '-' between, "
    f"at most {MAX_LENGTH} characters, e.g. 'sales.leads.sync'"
)


def parse_skill_name(text: str) -> str:
    """Return the skill name unchanged. Raise InvalidName if the text is not a valid skill name."""
    return _parse(text, "skill name")


def parse_namespace(text: str) -> str:
    """Return the namespace unchanged; "" is the root of all namespaces. Raise InvalidName if the text is not a valid
    namespace.
    """
    return _parse(text, "namespace") if text else text


def namespace_of(name: str) -> str:
    """Return all but the last segment of a name, or "" for a name of one segment."""
    return name.rpartition(".")[0]


def is_within(namespace: str, ancestor: str) -> bool:
    """Return whether `namespace` is `ancestor` or below it. Whole segments are compared: `ab` is not below `a`."""
    return not ancestor or namespace == ancestor or namespace.startswith(ancestor + ".")


def import_name(name: str) -> str:
    """Return the module name with which runs import a skill: `skills.user.my_skill` for `user.my-skill`."""
    return "skills." + name.replace("-", "_")


def _parse(text: str, kind: str) -> str:
    if len(text) > MAX_LENGTH:
        raise InvalidName(
            f"The {kind} {quoted(text)} has {len(text)} characters, at most {MAX_LENGTH} are allowed.",
            hint="Shorten it.",
        )
    if not _NAME.fullmatch(text):
        raise InvalidName(f"{quoted(text)} is not a {kind}.", hint=_hint(text, kind))
    return text


def similar_name(text: str) -> str:
    """Return the valid name that is similar to a text, or ""."""
    segments = (re.sub(r"[^a-z0-9]+", "-", segment).strip("-") for segment in text.lower().split("."))
    suggestion = ".".join(segment for segment in segments if segment)
    return suggestion if _NAME.fullmatch(suggestion) else ""


def _hint(text: str, kind: str) -> str:
    """Return a hint with the rule, and the similar valid name if there is one."""
    hint, similar = f"A {kind} is {_GRAMMAR}.", similar_name(text)
    return f"{hint} Perhaps {quoted(similar)}?" if similar else hint


# -- Names of secrets, and grantees: the skills and namespaces that a secret can be granted to -------------------------
# A run gets a secret as an environment variable with the secret's name. Therefore names of variables that interpreters,
# loaders or HTTP clients read are refused.


SECRET_PREFIX = "SKILLERY_SECRET_"  # noqa: S105 - the prefix of the environment variables of secrets, not a secret
SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORM = f"letters, digits and '_', not beginning with a digit, at most {MAX_LENGTH} characters, e.g. 'API_KEY'"

# Compared in capitals. Each name changes which code runs, which peers it trusts, or where it looks for files.
_RESERVED = {
    *("PATH", "HOME", "PWD", "OLDPWD", "CDPATH", "TMPDIR", "TMP", "TEMP"),
    *("LANG", "LANGUAGE", "TZ", "TERM", "SHELL", "SHLVL", "USER", "LOGNAME", "HOSTNAME"),
    *("IFS", "ENV", "PS4", "PROMPT_COMMAND"),
    *("GCONV_PATH", "LOCPATH", "NLSPATH", "GLIBC_TUNABLES"),
    *("NODE_OPTIONS", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "RUBYOPT"),
    *("OPENSSL_CONF", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
}
_RESERVED_STARTS = ("LD_", "DYLD_", "LC_", "PYTHON", "BASH_", "MALLOC_", "PERL5", "SKILLERY_")
_RESERVED_ENDS = ("_PROXY",)


def secret_name_problem(text: str) -> str | None:
    """Return the problem of a secret's name as a clause after the name, or None if the name is valid."""
    if not is_variable_name(text):
        return f"is not a secret name: {_FORM}"
    if changes_what_runs(text):
        return "is reserved: interpreters or libraries read an environment variable of this name; choose another name"
    return None


def is_variable_name(text: str) -> bool:
    return len(text) <= MAX_LENGTH and SECRET_NAME.fullmatch(text) is not None


def changes_what_runs(name: str) -> bool:
    """Return whether an interpreter, a loader or an HTTP client reads an environment variable with this name."""
    upper = name.upper()
    return upper in _RESERVED or upper.startswith(_RESERVED_STARTS) or upper.endswith(_RESERVED_ENDS)


def parse_secret_name(text: str) -> str:
    """Return the name unchanged. Raise InvalidName if the text is not a valid name for a secret."""
    problem = secret_name_problem(text)
    if problem:
        raise InvalidName(f"{quoted(text)} {problem}")
    return text


def parse_grantee(text: str) -> str:
    """Return the grantee unchanged. Raise InvalidParams if the text is neither a skill name nor a namespace with `.*`.

    `acme.mail` means the skill with this name. `acme.*` means every skill with a name that starts with `acme.`.
    """
    try:
        if text.endswith(".*"):
            parse_namespace(text.removesuffix(".*") or ".")
        else:
            parse_skill_name(text)
    except InvalidName:
        raise InvalidParams(
            f"{quoted(text)} is neither a skill nor a namespace",
            hint="Write the name of a skill (acme.mail), or a namespace and '.*' (acme.*) for all skills below it.",
        ) from None
    return text


def grantees_of(skill: str) -> list[str]:
    """Return all grantees that include the skill: for `a.b.c`, these are `a.b.c`, `a.b.*` and `a.*`."""
    grantees = [skill]
    while skill := namespace_of(skill):
        grantees.append(f"{skill}.*")
    return grantees


def index_name(name: str) -> str:
    """Return the name of a skill for indexes that allow no dots: `a.b_c` becomes `a-b-c`.

    A name of more than 64 characters is cut, and ends with eight hex digits of its SHA-256.
    """
    converted = name.replace(".", "-").replace("_", "-")
    if len(converted) <= MOST_IN_INDEX:
        return converted
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{converted[: MOST_IN_INDEX - _DIGEST_LENGTH - 1].rstrip('-')}-{digest}"
