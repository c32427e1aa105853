# SPDX-License-Identifier: Apache-2.0
"""The compiled adapter: the engine, and a library of ops that use it.

Load the ops first, from the same file, then import this:

    smdist_start(values, op="sum", scale=1.0) -> handle
    smdist_wait(handle, T, N) -> list of N tensors
    smdist_move(value, sent, received, kind, op="sum", root=0) -> handle
    smdist_moved(handle, T) -> tensor

A handle is an int64 scalar, to be waited for once; if it is dropped before, so are the results.
The shapes of results are unknown in a graph, since TensorFlow's C API reads none from
attributes: set_shape() is for the caller. scale is a float32.
"""

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

def adopt(engine: Engine, timeout_seconds: float) -> None:
    """The ops use this engine, and its group 0 of all ranks, from now on."""

def release() -> None:
    """The ops have no engine any more. Does not end it: shutdown() does."""

def activity(kind: str) -> tuple[int, float]:
    """Operations of this kind in this process: how many have ended, and how many seconds at
    least one of them was under way."""

def live_buffers() -> int:
    """Buffers that operations on their way, or results in TensorFlow, hold."""

def open_handles() -> int:
    """Handles that nobody has waited for, and TensorFlow has not dropped."""

def under_way() -> int:
    """Operations that have not ended."""
