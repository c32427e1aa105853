# SPDX-License-Identifier: Apache-2.0
"""Compiled adapter for TensorFlow: the engine, and a library of TensorFlow ops that use it.

tf.load_op_library() must load the ops from the same file before this module is imported:

    smdist_start(values, op="sum", scale=1.0, group=0, key="") -> handle
                                                                  starts an all-reduce
    smdist_wait(handle, T, N) -> list of N tensors                waits for its results
    smdist_move(value, sent, received, kind, op="sum", root=0, group=0, key="") -> handle
                                                                  starts another collective
    smdist_moved(handle, T) -> tensor                             waits for its result
    smdist_await(handle, T, N) -> list of N tensors               waits for either without blocking
                                                                  a thread of TensorFlow

A handle is an int64 scalar and must be waited for once; if it is deleted before, so are the
results. In a graph the results have unknown shapes, and the caller must call set_shape(),
because TensorFlow's C API cannot read shapes from attributes. scale is a float32.
"""

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

class HistoryWriter:
    def __init__(self, folder: str, stacks: int, requests: int, writes_failures: bool) -> None: ...
    def watch(self, engine: Engine) -> None: ...
    def install(self, signal: int) -> bool: ...
    def replace_handler(self) -> None: ...
    def close_in_child(self) -> None: ...
    def stop(self) -> None: ...

def adopt(engine: Engine, timeout_seconds: float) -> None:
    """Make the ops use this engine, and its group 0, which contains all ranks."""

def add_group(group: int, members: list[int]) -> None:
    """Add a group of ranks to the engine, for the attribute `group` of the ops."""

def join_by_name() -> int:
    """Let operations with names start without this rank until all ranks have called this.

    Return the number of the group in which they run.
    """

def release() -> None:
    """Make the ops use no engine any more; the engine keeps running until its shutdown()."""

def activity(kind: str) -> tuple[int, float]:
    """Return (number of operations of this kind that have ended in this process, seconds during
    which at least one was running). `kind` is a collective's name, such as "all_reduce"."""

def live_buffers() -> int:
    """Return the number of buffers that running operations or their results in TensorFlow use."""

def open_handles() -> int:
    """Return the number of handles that were neither waited for nor deleted."""

def under_way() -> int:
    """Return the number of operations that have not ended."""
