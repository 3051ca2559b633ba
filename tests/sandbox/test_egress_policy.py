"""Hosts that a run may reach: the matcher and the addresses of a name, with tables and with properties."""

from __future__ import annotations

import ipaddress
import os
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.egress.lookups import LookUpThreads, RunLookUps
from cellblock.egress.policy import Denied, Policy, Target, parse_target
from cellblock.egress.resolver import AddressRules, FixedHosts, checked_addresses
from cellblock.egress.streams import Caps
from skillery.formats.network import parse_network_pattern
from skillery.jobs import list_names

SALES = Policy.parse(
    ["https://*.salesforce.com", "https://api.example.com:8443", "http://plain.example.com"], list_names("linux")
)

fuzzed = settings(max_examples=int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "100")), deadline=None)


def allows(policy: Policy, scheme: str, authority: str) -> bool:
    try:
        policy.check(parse_target("https" if scheme == "https" else "http", authority))
    except Denied:
        return False
    return True


@pytest.mark.parametrize(
    ("scheme", "authority"),
    [
        ("https", "a.salesforce.com"),
        ("https", "a.salesforce.com:443"),
        ("https", "a.b.salesforce.com:443"),
        ("https", "A.SalesForce.COM"),
        ("https", "a.salesforce.com.:443"),
        ("https", "xn--bcher-kva.salesforce.com"),
        ("https", "api.example.com:8443"),
        ("http", "plain.example.com"),
        ("http", "plain.example.com:80"),
    ],
)
def test_policy_allows_hosts_matching_its_patterns(scheme: str, authority: str) -> None:
    assert allows(SALES, scheme, authority)


@pytest.mark.parametrize(
    "authority",
    [
        "evilsalesforce.com",
        "salesforce.com",
        "salesforce.com.",
        "salesforce.com.evil.com",
        "a.salesforce.com.evil.com",
        "a.salesforce.com..",
        ".salesforce.com",
        "..salesforce.com",
        "a..salesforce.com",
        "*.salesforce.com",
        "x\0.salesforce.com",
        "evil.com\0.salesforce.com",
        "x\r\n.salesforce.com",
        "a.salesforce.com\r\nHost: evil.com",
        "evil.com/.salesforce.com",
        "evil.com#.salesforce.com",
        "evil.com?.salesforce.com",
        "evil.com\\.salesforce.com",
        "evil.com%00.salesforce.com",
        "evil.com%2e.salesforce.com",
        "a%2esalesforce.com",
        "a.salesforce.com@evil.com",
        "evil.com@a.salesforce.com",
        "user:pw@a.salesforce.com",
        "а.salesforce.com",
        "a.ѕalesforce.com",
        "a.salesforce。com",
        "a.\u212aalesforce.com",
        "ⓐ.salesforce.com",
        " a.salesforce.com",
        "a.salesforce.com ",
        "a_b.salesforce.com",
        "-a.salesforce.com",
        "a-.salesforce.com",
        "a" * 64 + ".salesforce.com",
        ".".join(["a" * 60] * 5) + ".salesforce.com",
        "a.salesforce.com:80",
        "a.salesforce.com:8443",
        "a.salesforce.com:0443",
        "a.salesforce.com:+443",
        "a.salesforce.com:443:443",
        "a.salesforce.com:",
        "a.salesforce.com:0",
        "a.salesforce.com:65979",
        "a.salesforce.com:٤٤٣",
        "api.example.com",
        "x.api.example.com:8443",
        "plain.example.com",
        "plain.example.com:80",
        "",
        ".",
        ":443",
    ],
)
def test_policy_refuses_lookalike_authorities(authority: str) -> None:
    assert not allows(SALES, "https", authority)


@pytest.mark.parametrize("authority", ["a.salesforce.com:443", "plain.example.com:443", "api.example.com:8443"])
def test_the_scheme_is_part_of_the_permission(authority: str) -> None:
    assert not allows(SALES, "http", authority)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "1.2.3.4",
        "0",
        "0x",
        "[::1]",
        "::1",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[fe80::1%25eth0]",
        "fe80::1%eth0",
        "169.254.169.254",
        "１２７.0.0.1",
    ],
)
def test_an_address_is_refused_in_every_spelling(address: str) -> None:
    with pytest.raises(Denied):
        parse_target("https", address)
    with pytest.raises(Denied):
        parse_target("http", f"{address}:80")


def test_no_patterns_allow_nothing() -> None:
    assert not allows(Policy([]), "https", "example.com")
    assert not allows(Policy.parse([]), "http", "localhost")


def test_policy_refusal_shows_missing_permission_line() -> None:
    with pytest.raises(Denied) as refused:
        SALES.check(parse_target("https", "Login.Example.com:8443"))

    assert "https://login.example.com:8443 is not in permissions.network" in refused.value.reason
    assert '"https://login.example.com:8443" in permissions.network of skill.toml' in refused.value.advice
    assert Policy.parse(["https://login.example.com:8443"]).check(parse_target("https", "login.example.com:8443"))


@pytest.mark.parametrize(
    "text", ["\u017fttps://a.com", "http\u017f://a.com", "https://\u212a.com", "https://*", "ftp://a.com"]
)
def test_a_pattern_that_is_none_is_none_at_the_run_too(text: str) -> None:
    assert isinstance(parse_network_pattern(text), str)
    with pytest.raises(ValueError, match=r"network: "):
        Policy.parse([text])


label = st.text(string.ascii_letters + string.digits + "-", min_size=1, max_size=8)
almost = st.lists(st.one_of(label, st.sampled_from(["salesforce", "com", "", "%2e", "\0", "@", ":443", "evil"])))


@fuzzed
@given(st.one_of(st.text(max_size=40), almost.map(".".join)))
def test_allowed_host_is_always_canonical_ascii(text: str) -> None:
    policy = Policy.parse(["https://*.salesforce.com", "https://com"])
    try:
        target = parse_target("https", text)
        policy.check(target)
    except Denied:
        return
    host = target.host
    assert host == "com" or host.endswith(".salesforce.com")
    # The resolver of the C library and TLS get exactly the same bytes as the name.
    assert host.encode("ascii").decode() == host == host.lower().strip(".")
    assert host.encode("idna").decode() == host
    assert text.lower().startswith(host)
    assert set(host) <= set(string.ascii_lowercase + string.digits + "-.")


@fuzzed
@given(st.lists(label.filter(lambda text: not text.startswith("-") and not text.endswith("-")), min_size=1, max_size=4))
def test_every_name_below_a_wildcard_passes_and_the_apex_never(labels: list[str]) -> None:
    policy = Policy.parse(["https://*.salesforce.com"])
    name = ".".join(labels)
    assert allows(policy, "https", f"{name}.salesforce.com")
    assert not allows(policy, "https", f"{name}salesforce.com")
    assert not allows(policy, "https", "salesforce.com")


PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_not_dialled(address: str) -> None:
    assert AddressRules().problem(address) == "is not a public address"


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450::1"])
def test_a_public_address_may_be_dialled(address: str) -> None:
    assert AddressRules().problem(address) is None


@fuzzed
@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_no_address_is_more_public_than_the_standard_library_says(address: ipaddress.IPv4Address) -> None:
    if AddressRules().problem(str(address)) is None:
        assert address.is_global
        assert not any((address.is_private, address.is_loopback, address.is_multicast, address.is_reserved))


def test_the_operator_can_list_addresses_and_networks() -> None:
    rules = AddressRules(["127.0.0.1", "10.1.0.0/16"])
    assert rules.problem("127.0.0.1") is None
    assert rules.problem("10.1.255.1") is None
    assert rules.problem("127.0.0.2") is not None
    assert rules.problem("10.2.0.1") is not None
    assert rules.problem("::ffff:127.0.0.1") is not None
    with pytest.raises(ValueError):
        AddressRules(["localhost"])


async def test_name_with_any_private_address_is_refused() -> None:
    resolver = FixedHosts({"mixed.test": ["8.8.8.8", "169.254.169.254"]}, RunLookUps(LookUpThreads(), "", Caps()))
    with pytest.raises(Denied, match=r"169\.254\.169\.254, which is not a public address"):
        await checked_addresses(resolver, AddressRules(), "mixed.test")


async def test_names_of_this_machine_lead_nowhere() -> None:
    with pytest.raises(Denied):
        await checked_addresses(RunLookUps(LookUpThreads(), "", Caps()), AddressRules(), "localhost")


def test_a_target_is_written_as_a_permission() -> None:
    assert Target("https", "a.com", 443).origin == "https://a.com"
    assert Target("http", "a.com", 443).origin == "http://a.com:443"
