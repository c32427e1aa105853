# SPDX-License-Identifier: Apache-2.0
"""The compiled adapter: the engine, and a c10d backend over it."""

from collections.abc import Callable

import torch.distributed as dist

built_for_torch: str

class Fixed:
    """What is not to be measured; None: measure it."""

    lanes: int | None
    chunk_bytes: int | None
    one_shot_bytes: int | None
    single_owner_bytes: int | None
    arriving_bytes: int | None
    shard_weights: list[int]  # by rank; empty: equal

class Tuning:
    lanes: int
    chunk_bytes: int
    one_shot_bytes: int
    single_owner_bytes: int
    arriving_bytes: int

class Findings:
    """What the probe of a job has found: seconds, and bytes per second."""

    tuning: Tuning
    seconds: float
    latency: float
    bandwidth: float

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
    ) -> None: ...
    def endpoint(self) -> tuple[str, int, str]: ...
    def join(self, peers: list[tuple[str, int, str]]) -> None: ...
    def probe(
        self, rank: int, hosts: list[int], fixed: Fixed, timeout_seconds: float
    ) -> Findings: ...
    def add_group(self, group: int, members: list[int]) -> None: ...
    def abort(self, reason: str, details: str = ...) -> None: ...
    def fault(self) -> tuple[str, int, str, str, str] | None: ...
    def is_running(self) -> bool: ...
    def close_in_child(self) -> None: ...
    def shutdown(self) -> None: ...

def make_backend(
    engine: Engine,
    group: int,
    rank: int,
    size: int,
    timeout_seconds: float,
    owns_engine: bool,
    before_shutdown: Callable[[], None] | None = None,
) -> dist.Backend: ...
def activity(kind: str) -> tuple[int, float]:
    """Operations of this kind in this process: how many have ended, and how many seconds at
    least one of them was under way."""
