# SPDX-License-Identifier: Apache-2.0
"""Ends of ranks of an elastic job, reported to the agents of their hosts."""

import time

import psutil


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def watch(pids, agents, stop):
    """Report the ends of ranks to their agents, as launchers do."""
    left = dict(enumerate(pids))
    while left and not stop.is_set():
        for host in [host for host, pid in left.items() if has_ended(pid)]:
            agents[host].leave(f"rank {host} was killed by SIGKILL")
            del left[host]
        time.sleep(0.01)
