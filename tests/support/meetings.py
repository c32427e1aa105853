# SPDX-License-Identifier: Apache-2.0
"""Ranks that rendezvous through the core's own store: threads, or processes that can be killed."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from smdist.dataparallel.rendezvous.participants import Participant, RendezvousConfig
from smdist.dataparallel.rendezvous.tcp_store import open_store


def meeting_of(rank, size, port, *, timeout_seconds=10.0, job="", report_seconds=10.0, **options):
    participant = Participant(rank=rank, size=size, label=f"rank {rank} on host {rank}", job=job)
    return RendezvousConfig(
        participant=participant,
        host="127.0.0.1",
        port=port,
        timeout_seconds=timeout_seconds,
        report_seconds=report_seconds,
        **options,
    )


def meet(ranks, size, port, task, deadline=30, **options):
    """Return by rank the result of `task(store, rank)`, or the error that was raised."""

    def one(rank):
        try:
            with open_store(meeting_of(rank, size, port, **options)) as store:
                return task(store, rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = [pool.submit(one, rank) for rank in ranks]
        return [future.result(deadline) for future in futures]


def start(rank, size, port, code, **options):
    """Start a process that is this rank; `code` sees `store`, and its output can be read."""
    program = (
        "import os, signal, sys, time\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from meetings import meeting_of, open_store\n"
        f"with open_store(meeting_of({rank}, {size}, {port}, **{options!r})) as store:\n"
        f"    {code}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
