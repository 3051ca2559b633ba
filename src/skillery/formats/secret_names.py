"""Names of secrets, and to whom one may be granted. A run gets a secret as an environment variable of its name, so a
name that already means something to an interpreter, a loader or an HTTP client is refused."""

from __future__ import annotations

import re

from skillery.errors import InvalidName, InvalidParams
from skillery.formats.names import namespace_of, parse_namespace, parse_skill_name
from skillery.formats.wording import quoted

MAX_LENGTH = 128
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORM = f"letters, digits and '_', not beginning with a digit, at most {MAX_LENGTH} characters, e.g. 'API_KEY'"

# Compared in capitals. Each of them changes which code runs, whom it trusts, or where it believes to be.
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
    """What is wrong with the name of a secret, to be read after it (`is no name …`), or None."""
    if not is_variable_name(text):
        return f"is no name of a secret: {_FORM}"
    if changes_what_runs(text):
        return "is reserved: as an environment variable it means something else to the code; take another name"
    return None


def is_variable_name(text: str) -> bool:
    return len(text) <= MAX_LENGTH and _NAME.fullmatch(text) is not None


def changes_what_runs(name: str) -> bool:
    """Whether a variable of that name means something to what runs code, or to a client of HTTP."""
    upper = name.upper()
    return upper in _RESERVED or upper.startswith(_RESERVED_STARTS) or upper.endswith(_RESERVED_ENDS)


def parse_secret_name(text: str) -> str:
    """The name, as given. Raises InvalidName."""
    problem = secret_name_problem(text)
    if problem:
        raise InvalidName(f"{quoted(text)} {problem}")
    return text


def parse_grantee(text: str) -> str:
    """`acme.mail` for that skill, `acme.*` for every skill whose name starts with `acme.`. Raises InvalidParams."""
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
    """Everything a secret can be granted to that `skill` has it by: `a.b.c` by `a.b.c`, `a.b.*` and `a.*`."""
    found = [skill]
    while skill := namespace_of(skill):
        found.append(f"{skill}.*")
    return found
