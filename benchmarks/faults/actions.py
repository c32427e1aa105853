# SPDX-License-Identifier: Apache-2.0
"""Causes of faults from outside of the ranks: signals, networks, clocks and strangers.

Each function returns an action, which a row calls once with its job.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

from benchmarks.faults.hosts_job import PORT, HostsJob, memory_group, wait_until

Action = Callable[[HostsJob], None]
_LEAST_MEMORY = 512 << 10
_REMOVAL_SECONDS = 60.0  # until the kernel has ended all processes of a host
VICTIM = 2  # the host, and with one rank on each the rank, that is hit

_CONNECT = """
import os, socket, sys
address, port, greeting = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
kept = []
for number in range(int(sys.argv[4])):
    try:
        each = socket.create_connection((address, port), timeout=5)
        each.sendall(greeting)
        kept.append(each)
    except OSError:
        pass
sys.stdin.read()
"""


def signalled(kind: str, number: signal.Signals, host: int = VICTIM) -> Action:
    """Send a signal to a launcher, starter, guard or rank."""
    return lambda job: job.signal(kind, host, number)


def stopped(kind: str, seconds: float | None, host: int = VICTIM) -> Action:
    """Stop a process, and let it go on after so many seconds; None: never."""

    def act(job: HostsJob) -> None:
        (process,) = job.processes(kind, host)
        job.note_fault()
        process.send_signal(signal.SIGSTOP)
        if seconds is not None:
            time.sleep(seconds)
            process.send_signal(signal.SIGCONT)

    return act


def out_of_memory(host: int = VICTIM) -> Action:
    """Allow a rank no more memory, so that the kernel kills it at its next allocation."""

    def act(job: HostsJob) -> None:
        (rank,) = job.processes("rank", host)
        group = memory_group(job)
        limit = group / "memory.limit_in_bytes"  # of cgroup version 1
        if not limit.exists():
            limit = group / "memory.max"
            (group / "memory.swap.max").write_text("0")
        limit.write_text(str(_LEAST_MEMORY))
        job.note_fault()
        (group / "cgroup.procs").write_text(str(rank.pid))

    return act


def interrupted(times: int) -> Action:
    """Send SIGINT to every launcher, as Ctrl-C in their terminals; repeat it a second later."""

    def act(job: HostsJob) -> None:
        job.note_fault()
        for number in range(times):
            time.sleep(number)
            for launcher in job.launchers.values():
                launcher.send_signal(signal.SIGINT)

    return act


def terminated() -> Action:
    """Send SIGTERM to every launcher, as SageMaker does when a job is stopped."""

    def act(job: HostsJob) -> None:
        job.note_fault()
        for launcher in job.launchers.values():
            launcher.terminate()

    return act


def killed_when_restarted(host: int = 1) -> Action:
    """Kill the victim's rank, and another rank as soon as it has started anew."""

    def act(job: HostsJob) -> None:
        _restart(job, host)
        job.signal("rank", host, signal.SIGKILL)

    return act


def terminated_when_restarted() -> Action:
    """Kill the victim's rank, and send SIGTERM to every launcher while all ranks start anew."""

    def act(job: HostsJob) -> None:
        _restart(job, VICTIM)
        for launcher in job.launchers.values():
            launcher.terminate()

    return act


def _restart(job: HostsJob, host: int) -> None:
    """Kill the victim's rank, and wait until the rank of a host has started anew."""
    job.signal("rank", VICTIM, signal.SIGKILL)
    wait_until(
        lambda: any(each["attempt"] > 0 for each in job.events(host)), 120, "ranks that start anew"
    )


def all_of(*actions: Action) -> Action:
    """Cause several faults, one after the other."""

    def act(job: HostsJob) -> None:
        for each in actions:
            each(job)

    return act


def unplugged(host: int = VICTIM) -> Action:
    """Take the link of a host down; its processes run on."""

    def act(job: HostsJob) -> None:
        job.note_fault()
        _link(job, host, "down")

    return act


def host_killed(host: int = VICTIM, *, network: str, is_noticed: bool = True) -> Action:
    """Kill all processes of a host at once; "dies": its kernel answers nothing after that.

    The platform ends the other hosts if the loss `is_noticed`, as SageMaker does; a local job that
    is elastic goes on.
    """

    def act(job: HostsJob) -> None:
        processes = job.processes(host=host)
        job.note_fault()
        if network == "dies" or not is_noticed:
            job.vanished.add(host)
        if network == "dies":
            _link(job, host, "down")
        for each in processes:
            with contextlib.suppress(psutil.Error):
                each.kill()

    return act


def host_removed(host: int = VICTIM) -> Action:
    """End all processes of a host, and then its network, as a container is removed.

    New connections to the host are dropped all the while, so that no dial is refused.
    """

    def act(job: HostsJob) -> None:
        job.vanished.add(host)
        _iptables(job.hosts[host].prefix, "-A", "INPUT", "-p", "tcp", "--syn", "-j", "DROP")
        processes = job.processes(host=host)
        job.note_fault()
        for each in processes:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(processes, _REMOVAL_SECONDS)
        _link(job, host, "down")

    return act


def partitioned(seconds: float | None, ways: str, host: int = VICTIM) -> Action:
    """Drop packets between a host and all others; None: for good.

    `ways` is "both", "from" (packets of the host are lost) or "to" (packets to the host are lost).
    """

    def rules(job: HostsJob, change: str) -> None:
        for other in job.hosts:
            if other.number == host:
                continue
            here, there = job.hosts[host], other
            if ways in ("both", "from"):
                _iptables(there.prefix, change, "INPUT", "-s", here.address, "-j", "DROP")
            if ways in ("both", "to"):
                _iptables(here.prefix, change, "INPUT", "-s", there.address, "-j", "DROP")

    def act(job: HostsJob) -> None:
        job.note_fault()
        rules(job, "-A")
        if seconds is not None:
            time.sleep(seconds)
            rules(job, "-D")

    return act


def connections_reset(host: int = VICTIM) -> Action:
    """Let the kernel end all TCP connections of a host with RST, as `ss -K` does."""

    def act(job: HostsJob) -> None:
        job.note_fault()
        command = [*job.hosts[host].prefix, "ss", "-K", "state", "established"]
        subprocess.run(command, capture_output=True, check=True)

    return act


def connections_rejected(host: int = VICTIM, other: int = 1) -> Action:
    """Answer packets from one host to another with RST, as a firewall that has a new rule does."""

    def act(job: HostsJob) -> None:
        job.note_fault()
        rule = ["-p", "tcp", "-d", job.hosts[other].address]
        _iptables(
            job.hosts[host].prefix, "-A", "OUTPUT", *rule, "-j", "REJECT",
            "--reject-with", "tcp-reset",
        )  # fmt: skip

    return act


def visited_by_strangers(greeting: bytes, count: int, seconds: float = 4.0) -> Action:
    """Connect to every listening port of a host from another one, `count` times each."""

    def act(job: HostsJob) -> None:
        job.note_fault()
        ports = _listening(job, 0) | {PORT}
        visitors = [_visit(job, port, greeting, count) for port in ports]
        time.sleep(seconds)
        for each in visitors:
            each.communicate(timeout=30)

    return act


def _visit(job: HostsJob, port: int, greeting: bytes, count: int) -> subprocess.Popen[bytes]:
    arguments = [job.hosts[0].address, str(port), greeting.hex(), str(count)]
    command = [*job.hosts[-1].prefix, "python3", "-c", _CONNECT, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _listening(job: HostsJob, host: int) -> set[int]:
    listed = [*job.hosts[host].prefix, "ss", "-Htln"]
    text = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    return {int(line.split()[3].rpartition(":")[2]) for line in text.splitlines()}


def clock_jumped(seconds: float, host: int = VICTIM) -> Action:
    """Let the wall clock of a host jump; needs the library of `clock_library` in LD_PRELOAD."""

    def act(job: HostsJob) -> None:
        job.note_fault()
        place = job.folder / f"clock-{job.hosts[host].address}"
        place.with_suffix(".new").write_text(str(int(seconds)))
        place.with_suffix(".new").rename(place)

    return act


def nothing(job: HostsJob) -> None:
    """Cause nothing: the fault was there before the start."""
    job.note_fault()


def heal(job: HostsJob) -> None:
    """Undo what actions did to the network, so that the next job can use the hosts."""
    for host in job.hosts:
        _link(job, host.number, "up")
        subprocess.run([*host.prefix, "iptables", "-F"], capture_output=True, check=True)


def _link(job: HostsJob, host: int, state: str) -> None:
    subprocess.run(["ip", "link", "set", job.emulated.port(job.hosts[host]), state], check=True)


def _iptables(prefix: list[str], change: str, *rule: str) -> None:
    subprocess.run([*prefix, "iptables", "-w", change, *rule], check=True, capture_output=True)


def files_limited(job: HostsJob, host: int, count: int) -> None:
    """Lower the number of files that the processes of a host may have open, for good."""
    for each in job.processes(host=host):
        with contextlib.suppress(psutil.Error):
            each.rlimit(psutil.RLIMIT_NOFILE, (count, count))
