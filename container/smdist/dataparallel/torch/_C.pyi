# SPDX-License-Identifier: Apache-2.0
"""Compiled adapter for torch: the engine, and a torch.distributed backend that uses it."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from smdist.dataparallel.torch.two_levels import LevelDecider

built_for_torch: str

class Fixed:
    """Settings of the user. The engine measures the best value of each setting that is None."""

    lanes: int | None
    chunk_bytes: int | None
    one_shot_bytes: int | None
    single_owner_bytes: int | None
    arriving_bytes: int | None
    shard_weights: list[int]  # one for each rank; empty for equal shards

class Tuning:
    lanes: int
    chunk_bytes: int
    one_shot_bytes: int
    single_owner_bytes: int
    arriving_bytes: int

class Findings:
    """Results of the engine's measurement; times in seconds, bandwidth in bytes per second."""

    tuning: Tuning
    seconds: float
    latency: float
    bandwidth: float

has_openssl: bool  # False: integrity="mac" and encrypt=True are refused

class Engine:
    def __init__(
        self,
        rank: int,
        size: int,
        address: str,
        names: list[str],
        hosts: list[int],
        secret: bytes,
        session: bytes,
        pause_microseconds: int,
        arriving_bytes: int | None,
        lanes: int | None,
        start_timeout_seconds: float,
        integrity: str = "off",
        encrypt: bool = False,
        silence_seconds: float = 60,
        late_seconds: float = 10.0,
        ended_hosts_file: str = "",
    ) -> None: ...
    def endpoint(self) -> tuple[str, int, str]: ...
    def join(self, peers: list[tuple[str, int, str]]) -> None: ...
    def probe(
        self, rank: int, hosts: list[int], fixed: Fixed, timeout_seconds: float
    ) -> Findings: ...
    def add_group(self, group: int, members: list[int]) -> None: ...
    def abort(self, reason: str, details: str = ...) -> None: ...
    def fault(self) -> tuple[str, int, str, str, str] | None: ...
    def history(self, reason: str) -> str: ...
    def is_running(self) -> bool: ...
    def close_in_child(self) -> None: ...
    def shutdown(self) -> None: ...

class JoinedRank:
    """This rank, which has no more data, while it answers all-reduces of the others with zeros."""

    def __init__(
        self, engine: Engine, groups: list[int], control: int, timeout_seconds: float
    ) -> None: ...
    def advance(self, milliseconds: int) -> bool: ...  # True: all ranks have joined
    @property
    def last(self) -> int: ...

class NamedStarts:
    """Operations with names, and the events that they cause: all ranks have brought a name."""

    def __init__(
        self, engine: Engine, group: int, members: list[int], rank: int, timeout_seconds: float
    ) -> None: ...
    def bring(self, name: str, number: int) -> None: ...
    def join(self) -> None: ...
    def put(self, number: int) -> None: ...
    def take(self) -> tuple[int, str | None] | None: ...  # (number, error); None: closed
    def close(self) -> None: ...

class HistoryWriter:
    def __init__(self, folder: str, stacks: int, requests: int, writes_failures: bool) -> None: ...
    def watch(self, engine: Engine) -> None: ...
    def install(self, signal: int) -> bool: ...
    def replace_handler(self) -> None: ...
    def close_in_child(self) -> None: ...
    def stop(self) -> None: ...

def fault_of(work: dist.Work) -> tuple[str, int, str, str, str] | None: ...
def make_backend(
    engine: Engine,
    group: int,
    rank: int,
    size: int,
    timeout_seconds: float,
    *,
    staging_slot_bytes: int = ...,
    staging_slots: int = ...,
    wait_blocks_host: bool = ...,
    decide_levels: LevelDecider | None = None,
    two_level_bytes: int = ...,
    two_level_piece_bytes: int = ...,
    owns_engine: bool,
    before_shutdown: Callable[[], None] | None = None,
) -> dist.Backend: ...
def allreduce_of_layout(
    backend: dist.Backend, tensor: torch.Tensor, options: dist.AllreduceOptions, layout: int
) -> dist.Work:
    """Start an all-reduce that fails on all ranks if `layout` differs among them."""

def register_host_registration(device_type: str, address: int) -> None:
    """Let tensors of a type of device be staged in the engine's shared memory.

    Args:
        device_type: Name of the type, such as "cuda"; CUDA's own registration needs no call.
        address: Address of a HostRegistration (host_registration.h), which is never destroyed.
    """

def register_stream_memory(device_type: str, address: int) -> None:
    """Register the stream memory operations of a type of device: `address` is that of an object of
    the C++ class smdist::torch_binding::StreamMemory, which lives as long as the process."""

def finish_staging() -> None:
    """Block until no stream of a device waits for an operation that has not ended."""

def stop_staging() -> None:
    """End the threads that copy tensors between devices and the host. Requires: all engines were
    shut down. Raises the error of an operation that has failed after its wait(), if no call has
    raised it."""

def activity(kind: str) -> tuple[int, float]:
    """Return (number of operations of this kind that have ended in this process, seconds during
    which at least one was running). `kind` is a collective's name, such as "all_reduce"."""
