"""Names of secrets, and grantees: the skills and namespaces that a secret can be granted to.

A run gets a secret as an environment variable with the secret's name. Therefore names of variables that interpreters,
loaders or HTTP clients read are refused.
"""

from __future__ import annotations

import re

from skillery.errors import InvalidName, InvalidParams
from skillery.formats.names import namespace_of, parse_namespace, parse_skill_name
from skillery.formats.wording import quoted

SECRET_PREFIX = "SKILLERY_SECRET_"  # noqa: S105 - the prefix of the environment variables of secrets, not a secret
MAX_LENGTH = 128
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
