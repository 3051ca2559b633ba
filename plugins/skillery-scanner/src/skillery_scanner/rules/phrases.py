"""Phrases of instructions that work against the user, as regular expressions.

The texts are in lower case, with single spaces. Every repetition has a limit, so that a search takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


def words(most: int) -> str:
    """Return an expression for up to `most` words, each with a space after it."""
    return rf"(?:[\w'’\"(),/.-]{{1,30}} ){{0,{most}}}"


_OTHER = (
    r"(?:(?:all|any|the|your|my|these|those|every|other|of|previous|prior|earlier|above|preceding|existing|original|"
    r"initial|current|system|user|safety|security|default|built-in)(?:'s)? ){1,6}"
)
_RULES = (
    r"(?:instruction|rule|guideline|prompt|direction|directive|constraint|restriction|policy|policies|safeguard)s?\b"
)
_NOT = r"\b(?:do not|don'?t|never|without|must not|should not|avoid)"
_TELL = (
    r"(?:tell|telling|inform|informing|notify|notifying|alert|alerting|mention|mentioning|reveal|revealing|disclose|"
    r"disclosing|warn|warning|show|showing|let|letting)\b"
)
_USER = r"(?:the user|users\b|the human|the operator|anyone|anybody|their knowledge)"
_SECRETLY = r"\b(?:silently|secretly|covertly|stealthily|quietly|discreetly|in the background without)"
_ACTIONS = (
    r"(?:send|upload|post|run|execute|install|download|copy|forward|collect|read|delete|exfiltrate|transmit|append|"
    r"fetch|call)"
)
_FOLLOW = r"(?:follow|execute|obey|run|apply|carry out|perform|comply|act on|do (?:what|as|everything))\b"
_ORDERS = r"(?:instructions?|commands?|steps|directives?|prompts?|rules)"


class Phrases(NamedTuple):
    """The expressions of a rule. A text without any of the `hints` is not searched."""

    hints: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]


PHRASES: Mapping[str, Phrases] = {
    "ignore-instructions": Phrases(
        (
            *("ignore", "disregard", "forget", "override", "bypass", "discard", "neglect", "not follow", "not obey"),
            *("you are now", "you are no longer", "instruction", "message", "prompt", "im_start", "inst]", "system"),
        ),
        (
            re.compile(rf"\b(?:ignore|disregard|forget|override|bypass|discard|neglect) (?:about )?{_OTHER}{_RULES}"),
            re.compile(
                r"\b(?:ignore|disregard|forget) (?:everything|anything|all(?: of)?(?: what)?) (?:\w{1,20} ){0,4}"
                r"(?:above|before|said|told|so far)\b"
            ),
            re.compile(rf"\b(?:do not|don'?t|never) (?:follow|obey|apply|respect) {_OTHER}{_RULES}"),
            re.compile(
                r"\byou are (?:now |no longer )(?:an? |in )?"
                r"(?:dan\b|unrestricted|jailbroken|developer mode|bound by|restricted|limited by|subject to)"
            ),
            re.compile(
                r"\b(?:these|this|the following|my) (?:instruction|rule|directive|message)s? "
                rf"(?:take|takes|has|have|override|overrides|supersede|supersedes|replace|replaces)\b {words(5)}"
                r"(?:precedence|priority|instructions?|rules?|prompts?)\b"
            ),
            re.compile(r"\b(?:new|real|actual) (?:system )?(?:prompt|instructions?) ?:"),
            re.compile(r"<\|?im_start\|?>|<im_start>|\[/?(?:system|inst)\]|\bend of (?:the )?system prompt\b"),
        ),
    ),
    "conceal-instruction": Phrases(
        (
            *("not ", "n't", "dont ", "never", "without", "avoid", "silently", "secretly", "covertly", "stealthily"),
            *("quietly", "discreetly", "hide", "conceal", "keep"),
        ),
        (
            re.compile(rf"{_NOT} {words(3)}{_TELL} {words(4)}{_USER}"),
            re.compile(
                r"\b(?:do not|don'?t|never) (?:mention|reveal|disclose|report|log|acknowledge|discuss) "
                r"(?:this|these|that|any of|it\b|the (?:hidden|secret|background|internal|silent|upload|request))"
            ),
            re.compile(rf"{_SECRETLY} (?:\w{{1,20}} ){{0,2}}{_ACTIONS}\b"),
            re.compile(
                r"\b(?:hide|conceal|keep) (?:this|these|it|the) (?:\w{1,20} ){0,3}from (?:the )?"
                r"(?:user|human|operator|reviewer|owner)"
            ),
        ),
    ),
    "remote-instructions": Phrases(
        ("http", "the url", "remote"),
        (
            re.compile(
                r"\b(?:fetch|download|load|get|read|retrieve|open|visit|curl|pull|go to|check)\b.{0,60}?https?://"
                rf"\S{{1,200}}.{{0,60}}?\b(?:and|then)\b (?:\w{{1,20}} ){{0,3}}{_FOLLOW}"
            ),
            re.compile(
                rf"\b{_FOLLOW} (?:\w{{1,20}} ){{0,4}}{_ORDERS} (?:\w{{1,20}} ){{0,5}}(?:at|from|in|on|by) "
                r"<?\(?(?:https?://|the (?:url|server|response|page|gist|website|remote))"
            ),
            re.compile(
                rf"\b(?:{_ORDERS}|system prompt) (?:\w{{1,20}} ){{0,4}}(?:are|is) (?:\w{{1,20}} ){{0,3}}"
                r"(?:loaded|fetched|downloaded|retrieved|hosted|served|pulled|updated) (?:\w{1,20} ){0,4}"
                r"(?:from|at|on) .{0,40}?https?://"
            ),
        ),
    ),
    "unsafe-mode": Phrases(
        (
            *("--d", "--y", "--n", "--a", "--t", "disable", "turn off", "switch off", "deactivate", "bypass"),
            *("circumvent", "evade", "approve", "answer yes", "without"),
        ),
        (
            re.compile(
                r"--dangerously-skip-permissions|--yolo\b|--trust-all-tools|--approval-mode[ =](?:yolo|never)|"
                r"--dangerously-bypass-approvals|--ask-for-approval[ =]never|bypasspermissions"
            ),
            re.compile(
                r"\b(?:disable|turn off|switch off|deactivate|bypass|circumvent|evade) (?:\w{1,20} ){0,3}"
                r"(?:sandbox|safety (?:check|filter|feature)|security (?:check|scan|feature|control|polic)|guardrail|"
                r"antivirus|gatekeeper|content filter|permission (?:check|prompt)|confirmation|approval|defender|"
                r"selinux|apparmor)"
            ),
            re.compile(
                r"\b(?:auto-?approve|automatically approve|always approve|always answer yes to) "
                r"(?:\w{1,20} ){0,3}(?:tool|command|permission|action|request|prompt|edit|everything)"
            ),
            re.compile(
                r"\b(?:run|execute|install|delete|send|proceed|push|apply|upload) (?:\w{1,20} ){0,5}"
                r"without (?:ever )?(?:asking|requesting|waiting|any|user) (?:\w{1,20} ){0,3}"
                r"(?:confirmation|permission|approval|consent)\b"
            ),
        ),
    ),
}

PRIVATE = re.compile(
    r"\.env\b|environment variables?|\benv vars?\b|id_rsa|id_ed25519|\.ssh\b|\.aws\b|\.kube\b|\.netrc|\.npmrc|"
    r"\bpasswords?\b|private keys?|ssh keys?|\bcookies?\b|seed phrases?|\bwallets?\b|keychain|system prompt|"
    r"(?:chat|conversation|message|browser|browsing|shell|command)[ -](?:history|log|transcript)s?|"
    r"(?:whole|entire|full|complete|this|our|your) (?:conversation|chat|transcript|context)\b|\bstored credentials|"
    r"\b(?:user's|their|all|any|the) (?:\w{1,12} ){0,2}(?:credentials|secrets|api keys|tokens|personal data)\b"
)
"""Data that no skill has a reason to send."""
SEND = re.compile(
    r"\b(?:send|upload|post|submit|forward|transmit|exfiltrate|leak|e-?mail|ship|relay|append|include|embed|encode|"
    r"attach|smuggle)(?:s|es|ing)?\b|"
    r"\bcurl\b(?=.{0,60}(?:-d |--data|-x post|--form|-t ))|\bwget\b(?=.{0,60}--post)"
)
PLACE = re.compile(
    r"h(?:tt|xx)ps?://|\bwebhooks?\b|pastebin|discord|telegram|ngrok|requestbin|[\w.+-]{1,40}@[\w-]{1,40}\.\w{2,}|"
    r"\b(?:remote|external|our|my|attacker'?s?|collection|telemetry|analytics|backup|logging) "
    r"(?:server|endpoint|url|address|host|service|site|api)\b|query (?:string|parameter)|image url"
)
TO_PLACE = 140
TO_DATA = 110
"""The greatest distances between the parts of an instruction to send data, in characters."""
