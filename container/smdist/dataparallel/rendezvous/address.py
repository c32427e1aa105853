# SPDX-License-Identifier: Apache-2.0
"""Choice of the address that this rank's engine listens at and connects from.

Three sources, in this order; the first one that is known is used:

    SMDIST_ADDRESS     an address, which the launcher sets
    SMDIST_INTERFACE   name of a network interface of this host, whose address is used
    MASTER_ADDR        rank 0's host; this host's address on the route to rank 0's host is used
"""

from __future__ import annotations

import fcntl
import socket
import struct
from ipaddress import ip_address

from sagemaker_dist.errors import LaunchError
from smdist.config import RankConfig

_SIOCGIFADDR = 0x8915  # ioctl of linux/sockios.h that returns the address of an interface


def own_address(config: RankConfig) -> str:
    """Return the IPv4 address at which other ranks reach this rank.

    Raises:
        LaunchError: The network interface in SMDIST_INTERFACE has no IPv4 address, or this host
            has no route to rank 0's host.
    """
    if config.address:
        return config.address
    if config.interface:
        return _address_of(config.interface)
    return _address_towards(config.master_address)


def listening_address(host: str, own: str) -> str:
    """Return the one address at which rank 0's store listens; "" for all addresses of its host.

    `host` is MASTER_ADDR, at which the other ranks connect to the store. `own` is rank 0's own
    address. All addresses are needed if `host` is a name, or an address that another machine
    translates.
    """
    if host == "localhost":
        return "127.0.0.1"
    try:
        is_loopback = ip_address(host).is_loopback
    except ValueError:
        return ""
    return host if is_loopback or host == own else ""


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError as error:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise LaunchError(
                f"the network interface {interface!r} has no IPv4 address",
                f"{error.strerror}; the interfaces of this host are {known}",
                "Set SMDIST_INTERFACE to one of them",
                about="SMDIST_INTERFACE",
            ) from error
    return socket.inet_ntoa(answer[20:24])


def _address_towards(host: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # connect() of a UDP socket sends no packet
        except OSError as error:
            raise LaunchError(
                f"this host has no network route to rank 0's host {host!r}",
                str(error),
                "Check that MASTER_ADDR names rank 0's host, or set SMDIST_INTERFACE to this"
                " host's network interface",
                about="MASTER_ADDR",
            ) from error
        return str(probe.getsockname()[0])
