"""Resolution of host names to addresses that the proxy may connect to.

The proxy resolves the name for a connection once, and connects to the checked addresses. A later answer of the name
server has no effect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from cellblock.egress.policy import Denied, ListNames

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DIAL_SECONDS = 10.0
MAX_ADDRESSES = 16
GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
# Networks that `is_global` of some Python version allows, or that map to internal IPv4 addresses.
NOT_PUBLIC: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "224.0.0.0/3",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
    )
)


class Resolver(Protocol):
    async def look_up(self, host: str) -> list[str]:
        """Return the addresses of a canonical host. Raise OSError if there are none, Denied if the look-up is
        refused.
        """
        ...


class FixedHosts:
    """Names whose addresses the operator configured. Another resolver looks up all other names."""

    def __init__(self, hosts: Mapping[str, Sequence[str]], others: Resolver) -> None:
        self._hosts = {host.lower().removesuffix("."): list(addresses) for host, addresses in hosts.items()}
        self._others = others

    async def look_up(self, host: str) -> list[str]:
        return self._hosts[host] if host in self._hosts else await self._others.look_up(host)


class AddressRules:
    """The rules for addresses: public addresses of other machines are allowed, and the addresses in the operator's
    list.
    """

    def __init__(
        self,
        allow_private: Sequence[str] = (),
        *,
        every: bool = False,
        names: ListNames = ListNames(),  # noqa: B008 - frozen
    ) -> None:
        """Allow the addresses and networks (`10.1.0.0/16`) of `allow_private`, or `every` address.

        Raise ValueError if one is invalid.
        """
        self.names = names
        self._every = every
        self._allowed = [ipaddress.ip_network(text) for text in allow_private]

    def problem(self, text: str) -> str | None:
        """Return the reason why this address is not allowed, or None if it is allowed."""
        address = ipaddress.ip_address(text.partition("%")[0])
        if self._every or ("%" not in text and any(address in network for network in self._allowed)):
            return None
        if not is_public(address):
            return "is not a public address"
        return "is an address of this server" if is_own(address) else None


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_IPV6:
        return False  # loopback, link-local, unique local, mapped and compatible IPv4, NAT64, multicast
    return address.is_global and not address.is_multicast and not any(address in network for network in NOT_PUBLIC)


def is_own(address: Address) -> bool:
    """Return whether the kernel delivers packets for the address to this machine.

    Then a connected datagram socket has the same address at both ends. Connecting such a socket sends no packet.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == address
        except OSError:
            return False  # no route


async def checked_addresses(resolver: Resolver, rules: AddressRules, host: str) -> list[str]:
    """Return the addresses of `host` to connect to. Raise Denied if it has none, or if one is not allowed."""
    try:
        addresses = (await resolver.look_up(host))[:MAX_ADDRESSES]
    except (OSError, UnicodeError):
        raise Denied(f"{host} could not be looked up", status=502) from None
    if not addresses:
        raise Denied(f"{host} has no address", status=502)
    for address in addresses:
        problem = rules.problem(address)
        if problem:
            advice = f"the operator can list it in {rules.names.private}"
            raise Denied(f"{host} has the address {address}, which {problem}", advice=advice)
    return addresses


async def dial(addresses: Sequence[str], port: int) -> socket.socket:
    """Return a connection to the first address that answers. Raise Denied if none does."""
    loop = asyncio.get_running_loop()
    reason = ""
    for text in addresses:
        family = socket.AF_INET if ipaddress.ip_address(text).version == 4 else socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await loop.sock_connect(connection, (text, port))
        except (OSError, TimeoutError) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or "no answer"
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise Denied(f"no connection to port {port}: {reason.lower()}", status=502)
