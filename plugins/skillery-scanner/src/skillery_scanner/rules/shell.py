"""Commands in scripts, in code blocks and in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from skillery_scanner.catalog import Match
from skillery_scanner.texts import commands_of, excerpt

_SHELL = r"(?:sudo (?:-\w{1,3} )?)?(?:/(?:usr/)?bin/)?(?:env )?(?:ba|z|da|k|fi)?sh\b"
_INTERPRETER = rf"(?:{_SHELL}|(?:sudo )?(?:/usr/bin/)?(?:python[0-9.]{{0,4}}|perl|ruby|node|php|osascript)\b)"
_DOWNLOAD = r"(?:curl|wget|fetch|aria2c|iwr|irm|invoke-webrequest|invoke-restmethod)\b"
_DECODE = r"(?:base64 (?:-d|-D|--decode|-di)|openssl (?:enc )?(?:-base64|base64|-d)\b|xxd -r|b64decode|rev\b|tr )"
_START_UP = (
    r"(?:\.bashrc|\.zshrc|\.profile|\.bash_profile|authorized_keys|/etc/rc\.local|/etc/cron|launchagents|"
    r"systemd/(?:system|user)|crontab|autostart|currentversion\\run)"
)
_OF_AGENTS = (
    r"(?:claude\.md|agents\.md|soul\.md|memory\.md|gemini\.md|\.cursorrules|copilot-instructions\.md|\.claude/settings)"
)

_PATTERNS: Mapping[str, tuple[tuple[str, ...], tuple[re.Pattern[str], ...]]] = {
    "pipe-to-shell": (
        ("curl", "wget", "fetch", "aria2c", "iwr", "irm", "invoke-"),
        (
            re.compile(rf"\b{_DOWNLOAD}[^|\n]{{0,400}}\|(?:[^|\n]{{0,200}}\|){{0,3}}\s{{0,4}}{_INTERPRETER}"),
            re.compile(rf"{_INTERPRETER}[^\n]{{0,40}}(?:<\(|\$\(|`)\s{{0,4}}{_DOWNLOAD}"),
            re.compile(rf"\b(?:eval|source|exec|\.) [\"']?(?:<\(|\$\(|`)\s{{0,4}}{_DOWNLOAD}"),
            re.compile(
                r"\b(?:iwr|irm|invoke-webrequest|invoke-restmethod)\b[^|\n]{0,300}\|\s{0,4}(?:iex|invoke-expression)\b"
            ),
            re.compile(r"\b(?:iex|invoke-expression)\b[^\n]{0,60}(?:iwr|irm|downloadstring|invoke-webrequest)"),
        ),
    ),
    "download-and-run": (
        (
            "curl",
            "wget",
            "downloadfile",
            "npx",
            "uvx",
            "bunx",
            "pipx",
            "git clone",
            "osascript",
            "mshta",
            "rundll32",
            "certutil",
        ),
        (
            re.compile(
                r"\b(?:curl|wget)\b[^\n]{0,300}(?:&&|;)[^\n]{0,80}(?:chmod \+?[0-7x]{1,4}|(?:ba|z)?sh |\./|python3? |source )"
            ),
            re.compile(r"\b(?:npx|uvx|bunx|pipx run)\s(?:--?[\w-]{1,20}[ =]){0,4}(?:https?://|git\+|github:)"),
            re.compile(r"\bgit clone [^\n]{0,200}(?:&&|;)[^\n]{0,120}(?:install\.sh|setup\.sh|make\b|\./|python3? )"),
            re.compile(r"\b(?:mshta|rundll32|certutil)\b[^\n]{0,100}https?://"),
        ),
    ),
    "encoded-payload": (
        ("base64", "openssl", "xxd", "atob", "powershell", "pwsh", "\\x", "rev", "fromcharcode"),
        (
            re.compile(rf"{_DECODE}[^|\n]{{0,200}}\|(?:[^|\n]{{0,200}}\|){{0,2}}\s{{0,4}}{_INTERPRETER}"),
            re.compile(rf"\b(?:eval|{_SHELL} -c)[^\n]{{0,60}}(?:\$\(|`)[^\n]{{0,300}}{_DECODE}"),
            re.compile(
                r"\b(?:powershell|pwsh)(?:\.exe)?[^\n]{0,120}\s-(?:e|ec|enc|encodedcommand)\s{1,4}[a-z0-9+/=]{20,}"
            ),
            re.compile(
                r"\b(?:eval|function|settimeout|execsync|exec)\s{0,4}\(\s{0,4}(?:atob|buffer\.from|string\.fromcharcode|unescape|decodeuricomponent)\b"
            ),
            re.compile(r"\becho\s[^|\n]{0,20}(?:\\x[0-9a-f]{2}){8,}[^|\n]{0,400}\|\s{0,4}" + _INTERPRETER),
        ),
    ),
    "reverse-shell": (
        ("/dev/tcp", "/dev/udp", "nc ", "ncat", "netcat", "socat", "mkfifo", "pty.spawn", "fsockopen"),
        (
            re.compile(r"/dev/(?:tcp|udp)/[\w.${}-]{1,80}/[\w${}]{1,20}"),
            re.compile(
                r"\b(?:nc|ncat|netcat)\b[^\n|;]{0,80}\s-\w{0,4}[ec]\w{0,2}\s{1,4}(?:/bin/)?(?:ba|z)?(?:sh|cmd)\b"
            ),
            re.compile(r"\bmkfifo\b[^\n]{0,200}\b(?:nc|ncat|netcat|telnet|openssl s_client)\b"),
            re.compile(r"\bsocat\b[^\n]{0,120}exec:[^\n]{0,40}sh\b"),
        ),
    ),
    "destructive-command": (
        ("rm ", "mkfs", "dd ", ":(){", "shred", "rmtree", "format c:"),
        (
            re.compile(
                r"\brm\s{1,4}(?:-{1,2}[\w-]{1,20}\s{1,4}){0,4}-\w{0,6}[rf]\w{0,6}\s{1,4}(?:-{1,2}[\w-]{1,20}\s{1,4}){0,3}[\"']?(?:/|~|\$home|\$\{home\}|/\*|~/\*|/home|/etc|/usr|/var|c:\\)[\"'*/]{0,3}(?:\s|$|[;&|)\"'`])"
            ),
            re.compile(r"\bmkfs(?:\.\w{2,6})?\s[^\n]{0,60}/dev/|\bdd\s[^\n]{0,80}\bof=/dev/(?:sd|nvme|hd|vd|disk)"),
            re.compile(r":\(\)\s{0,2}\{\s{0,2}:\s{0,2}\|\s{0,2}:\s{0,2}&\s{0,2}\}|\bshred\s[^\n]{0,60}/dev/"),
        ),
    ),
    "persistence": (
        (
            "rc",
            "profile",
            "authorized_keys",
            "cron",
            "launchagents",
            "systemd",
            "autostart",
            "\\run",
            ".md",
            ".cursorrules",
            ".claude",
        ),
        (
            re.compile(
                rf"(?:>>?|\btee\b[^\n]{{0,20}}|\bcp\b[^\n]{{0,120}}|\bmv\b[^\n]{{0,120}}|\bln -s[^\n]{{0,120}})\s{{0,4}}[\"']?[~$/\w.{{}}-]{{0,80}}{_START_UP}"
            ),
            re.compile(r"\|\s{0,4}crontab\b|\bcrontab\s{1,4}(?:-\s|/|\$|<)|\(crontab -l"),
            re.compile(rf"(?:>>|\btee -a)\s{{0,4}}[\"']?[~$/\w.{{}}-]{{0,80}}{_OF_AGENTS}"),
            re.compile(
                rf"\b(?:append|add|write|insert|copy|save|inject) [^\n]{{0,120}}\b(?:to|into|in) (?:the )?(?:user'?s )?[`\"']?[~$/\w.{{}}-]{{0,40}}(?:{_OF_AGENTS}|\.bashrc|\.zshrc|authorized_keys)"
            ),
        ),
    ),
    "untrusted-install": (
        ("pip", "npm", "uv ", "gem ", "cargo"),
        (
            re.compile(
                r"\b(?:pip3?|uv(?: pip)?) (?:install|add)\b[^\n]{0,160}(?:--(?:extra-)?index-url[ =]|--trusted-host|-i )\s{0,2}[\"']?(?!https://pypi\.org|https://download\.pytorch\.org)"
            ),
            re.compile(
                r"\b(?:pip3?|uv(?: pip)?) (?:install|add)\b[^\n]{0,80}\s[\"']?(?:[\w-]{1,60}\s?@\s?)?(?:git\+)?http"
            ),
            re.compile(
                r"\b(?:npm|pnpm|yarn)\b[^\n]{0,80}\s(?:install|add|i)\s[^\n]{0,80}(?:https?://|git\+|--registry)"
            ),
        ),
    ),
    "sensitive-path": (
        (
            ".ssh",
            ".aws",
            ".env",
            "shadow",
            "keychain",
            "login data",
            "cookies.sqlite",
            ".netrc",
            ".kube",
            "wallet",
            ".gnupg",
        ),
        (
            re.compile(
                r"\b(?:cat|less|head|tail|cp|scp|tar|zip|base64|grep|curl|open|read_text|read_bytes|readfile(?:sync)?)\b[^\n]{0,80}(?:~|\$home|\$\{home\}|/root|/home/\w{1,30}|/users/\w{1,30})/[^\s]{0,40}(?:\.ssh/|\.aws/|\.netrc|\.kube/|\.gnupg|login data|cookies\.sqlite|wallet)"
            ),
            re.compile(r"\b(?:cat|less|cp|base64|curl)\b[^\n]{0,60}/etc/shadow\b"),
            re.compile(r"\bsecurity (?:find-generic-password|dump-keychain)|library/keychains"),
        ),
    ),
}
_SENDERS = ("curl", "wget", "nc ", "ncat", "invoke-webrequest", "iwr")
_THEFT = re.compile(
    r"\b(?:curl|wget|nc|http|invoke-webrequest|iwr)\b[^\n]{0,300}(?:@[~$/\w.{}-]{0,60}(?:\.ssh/|\.aws/|\.env\b|id_rsa|id_ed25519|"
    r"\.netrc|shadow|passwd)|\$\((?:env|printenv|cat [^)]{0,60}(?:\.ssh|\.aws|\.env|id_rsa|passwd|shadow))|`env`|"
    r"<\((?:env|printenv)\))|\b(?:env|printenv|cat [^|\n]{0,80}(?:\.ssh/|\.aws/|\.env\b|id_rsa|/etc/passwd|/etc/shadow|"
    r"_history))[^\n|]{0,40}\|(?:[^|\n]{0,80}\|){0,2}\s{0,4}(?:curl|wget|nc|ncat)\b"
)


def commands(path: str, text: str) -> Iterator[Match]:
    """Yield dangerous commands in any text."""
    lowered = text.lower()
    # Most files contain no hint of most rules.
    likely = [
        (rule, *expressions)
        for rule, expressions in _PATTERNS.items()
        if any(hint in lowered for hint in expressions[0])
    ]
    if not likely and not any(hint in lowered for hint in _SENDERS):
        return
    for piece in commands_of(text):
        line = piece.text.lower()
        for rule, hints, patterns in likely:
            if any(hint in line for hint in hints):
                danger = next((match for pattern in patterns if (match := pattern.search(line))), None)
                if danger:
                    yield Match(rule, path, piece.numbers[0], excerpt(piece.text, danger.start(), danger.end()))
        if any(hint in line for hint in _SENDERS) and (danger := _THEFT.search(line)):
            yield Match("data-theft", path, piece.numbers[0], excerpt(piece.text, danger.start(), danger.end()))
