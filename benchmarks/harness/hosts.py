# SPDX-License-Identifier: Apache-2.0
"""Emulated hosts on one machine: network namespaces on a bridge, each with a slow link.

A link is limited in both directions, like the port of a switch: token buckets of
`tc tbf` limit the bytes that a host sends and the bytes that it receives. Each flow may have
a lower rate of its own. Needs root, iproute2 and iperf3.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.flows import flow_limits

NETWORK = "10.77.0"
INTERFACE = "e0"
# A bucket must hold more than one 64 KiB packet of segmentation offload, or the packet is stuck.
_SENDING = ("burst", "256kb", "latency", "20ms")
_RECEIVING = ("burst", "256kb", "limit", "512kb")
_FLOWS = 16  # number of flows that fill a link


@dataclass(frozen=True)
class Host:
    """Host of a rank: a network namespace of this machine, or the machine itself."""

    number: int
    namespace: str | None = None
    network: str = NETWORK

    @property
    def address(self) -> str:
        return f"{self.network}.{self.number + 1}" if self.namespace else "127.0.0.1"

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []


class EmulatedHosts:
    """Set of `count` hosts with links of `rate`, such as `1gbit`, removed after the `with` block.

    With a `flow_rate`, no TCP flow from one host to another is faster than that. Sets of hosts with
    different names and networks can exist at the same time.

    Args:
        count: Number of hosts.
        rate: Limit of a link, in both directions.
        flow_rate: Limit of a TCP flow.
        name: Beginning of the names of namespaces and interfaces, at most 4 characters.
        network: First three numbers of all addresses.
    """

    def __init__(
        self,
        count: int,
        rate: str,
        flow_rate: str | None = None,
        name: str = "sd",
        network: str = NETWORK,
    ) -> None:
        self.rate = rate
        self.flow_rate = flow_rate
        self._name = name
        self._bridge = f"{name}br"
        self.hosts = [Host(number, f"{name}host{number}", network) for number in range(count)]

    def __enter__(self) -> EmulatedHosts:
        self._remove()
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for host in self.hosts:
            self._add(host)
        return self

    def __exit__(self, *_: Any) -> None:
        self._remove()

    def places(self, each: int) -> list[Host]:
        """Return the host of each rank, in rank order: `each` ranks on host 0, then on host 1."""
        return [host for host in self.hosts for _ in range(each)]

    def goodput(self, seconds: float = 1) -> float:
        """Measure the TCP throughput of a link with iperf3, in bytes per second.

        Uses one flow, or with a `flow_rate` enough flows to fill the link.
        """
        receiver, sender = self.hosts[:2] if self.flow_rate else self.hosts[1::-1]
        server = [*receiver.prefix, "iperf3", "-s", "-1", "-B", receiver.address]
        client = [*sender.prefix, "iperf3", "-J", "-c", receiver.address, "-t", str(seconds)]
        if self.flow_rate:
            client += ["-P", str(_FLOWS)]
        with subprocess.Popen(server, stdout=subprocess.DEVNULL) as listening:
            time.sleep(0.3)
            done = subprocess.run(client, capture_output=True, check=True, text=True, timeout=60)
            listening.wait(10)
        return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8

    def packets(self) -> int:
        """Return the number of packets sent by all hosts so far, before segmentation offload."""
        return sum(self._packets_of(host) for host in self.hosts)

    def port(self, host: Host) -> str:
        """Return the name of the switch's interface to which a host is connected."""
        return f"{self._name}v{host.number}"

    def _packets_of(self, host: Host) -> int:
        counters = ["cat", f"/sys/class/net/{INTERFACE}/statistics/tx_packets"]
        done = subprocess.run([*host.prefix, *counters], capture_output=True, check=True, text=True)
        return int(done.stdout)

    def _add(self, host: Host) -> None:
        outside = self.port(host)
        inside = ["-n", str(host.namespace)]
        _ip("netns", "add", str(host.namespace))
        peer = ["peer", "name", INTERFACE, "netns", str(host.namespace)]
        _ip("link", "add", outside, "type", "veth", *peer)
        _ip("link", "set", outside, "master", self._bridge, "up")
        _ip(*inside, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
        _ip(*inside, "link", "set", INTERFACE, "up")
        _ip(*inside, "link", "set", "lo", "up")
        limit = ["root", "tbf", "rate", self.rate]
        if self.flow_rate is None:
            _run("tc", *inside, "qdisc", "add", "dev", INTERFACE, *limit, *_SENDING)
        else:
            addresses = {each.number: each.address for each in self.hosts}
            limits = flow_limits(INTERFACE, self.rate, self.flow_rate, host.number, addresses)
            _run("tc", *inside, "-batch", "-", script="\n".join(limits))
        _run("tc", "qdisc", "add", "dev", outside, *limit, *_RECEIVING)

    def _remove(self) -> None:
        """Remove all emulated hosts, including those of an earlier run."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            if line.startswith(f"{self._name}host"):
                _ip("netns", "del", line.split()[0])
        links = json.loads(subprocess.check_output(["ip", "-json", "link"]))
        for name in [link["ifname"] for link in links]:
            # an interface may be gone with its peer already
            if name == self._bridge or name.startswith(f"{self._name}v"):
                subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, script: str = "") -> None:
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)} failed: {done.stderr.strip()}\n"
            "Emulated hosts need root, iproute2 and the kernel's tbf (for flows, htb and u32);"
            " Docker's bridge filter must be off (sysctl net.bridge.bridge-nf-call-iptables=0)."
        )
