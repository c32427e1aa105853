# SPDX-License-Identifier: Apache-2.0
"""Each rank writes its last operations and its stacks on request, whatever it is doing."""

import ctypes
import faulthandler
import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from smdist.config import read_rank_config
from smdist.dataparallel.rendezvous import connect, history_dump
from smdist.dataparallel.rendezvous.engine_shutdown import last_fault
from smdist.dataparallel.torch import _C, backend


@contextmanager
def writer_in(output_data):
    """Let the rank's history be written below a folder, as under smdist's launcher."""
    _remove_writers()
    config = replace(read_rank_config(), output_data=Path(output_data))
    engine, _ = backend._world[0]
    history_dump.start_history(engine, _C, config)
    try:
        yield Path(output_data, "smdist-debug")
    finally:
        _remove_writers()


def _remove_writers():
    for writer in history_dump._writers:
        writer.stop()
    history_dump._writers.clear()
    if history_dump._sockets:
        requests, source = history_dump._sockets
        os.close(requests)  # ends the thread that writes stacks
        for thread in threading.enumerate():
            if thread.name == "smdist-stacks":
                thread.join(30)
        os.close(source)
    history_dump._sockets.clear()
    faulthandler.unregister(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)
    return path.read_text()


def write_after_a_signal(rank, size, folder):
    dist.all_reduce(torch.ones(100))
    with writer_in(folder) as files:
        os.kill(os.getpid(), signal.SIGUSR2)
        stacks = wait_for(files / f"stacks-rank-{rank}.txt")
        return json.loads(wait_for(files / f"operations-rank-{rank}.json")), stacks


def test_a_signal_writes_the_operations_and_the_stacks(world, tmp_path):
    for rank, (found, stacks) in enumerate(world.run(write_after_a_signal, str(tmp_path), size=2)):
        assert (rank, 2, "signal", None) == tuple(
            found[name] for name in ("rank", "size", "reason", "fault")
        )
        assert [0, 1] == found["groups"]["0"]
        last = found["operations"][-1]
        assert ("all_reduce", "float32", 400, "sum", "ended") == tuple(
            last[name] for name in ("kind", "dtype", "bytes", "op", "state")
        )
        assert last["submitted"] <= last["started"] <= last["ended"] <= time.time()
        assert "in write_after_a_signal" in stacks
        assert "_write_stacks" not in stacks  # the thread that writes them


def change_stacks(is_over):
    """Make and leave frames until the end, in deep recursions and in code that is freed soon."""

    def descend(depth):
        return descend(depth - 1) if depth else depth

    while not is_over.is_set():
        exec(compile("def f(n):\n  return f(n - 1) if n else n\nf(50)", "<text>", "exec"), {})
        descend(300)


def write_beside_threads(rank, size, folder):
    is_over = threading.Event()
    threads = [threading.Thread(target=change_stacks, args=(is_over,)) for _ in range(2)]
    with writer_in(folder) as files:
        for each in threads:
            each.start()
        raise_signal = getattr(ctypes.CDLL(None), "raise")  # lets other threads have the GIL
        for _ in range(100):
            (files / f"stacks-rank-{rank}.txt").unlink(missing_ok=True)
            raise_signal(int(signal.SIGUSR2))
            time.sleep(0.005)
        stacks = wait_for(files / f"stacks-rank-{rank}.txt")
        is_over.set()
        for each in threads:
            each.join()
    return stacks


def test_threads_that_run_may_change_their_stacks_meanwhile(world, tmp_path):
    """A walk over the stack of a thread that runs meanwhile crashes."""
    (stacks,) = world.run(write_beside_threads, str(tmp_path), size=1)

    assert "in write_beside_threads" in stacks


def keep_own_handler(rank, size, folder):
    calls = []
    _remove_writers()
    signal.signal(signal.SIGUSR2, lambda *_: calls.append("before"))
    config = replace(read_rank_config(), output_data=Path(folder))
    history_dump.start_history(backend._world[0][0], _C, config)
    os.kill(os.getpid(), signal.SIGUSR2)
    Path(folder, "smdist-debug.request").touch()
    wait_for(Path(folder, "smdist-debug", f"operations-rank-{rank}.json"))
    _remove_writers()
    with writer_in(folder) as files:
        signal.signal(signal.SIGUSR2, lambda *_: calls.append("after"))
        (files / f"operations-rank-{rank}.json").unlink()
        os.utime(Path(folder, "smdist-debug.request"), (1, 1))
        wait_for(files / f"operations-rank-{rank}.json")
        os.kill(os.getpid(), signal.SIGUSR2)
    return calls, sorted(path.name for path in files.iterdir())


def test_a_handler_of_the_script_is_not_disturbed(world, tmp_path):
    """Neither one that was there before the engine, nor one that came later."""
    ((calls, files),) = world.run(keep_own_handler, str(tmp_path), size=1)

    assert ["before", "after"] == calls
    assert ["operations-rank-0.json"] == files


def hold_the_gil(rank, size, folder):
    """Request the files of the writer while compiled code keeps the GIL, until both are there."""
    with writer_in(folder) as files:
        operations = files / f"operations-rank-{rank}.json"
        stacks = files / f"stacks-rank-{rank}.txt"
        wait = f"until [ -s {operations} ] && [ -s {stacks} ]; do sleep 0.05; done"
        request = f": > {folder}/smdist-debug.request"
        status = ctypes.PyDLL(None).system(f"{request}; timeout 60 sh -c '{wait}'".encode())
        return status, stacks.read_text()


def test_a_rank_that_holds_the_gil_writes_nevertheless(world, tmp_path):
    ((status, stacks),) = world.run(hold_the_gil, str(tmp_path), size=1)

    assert 0 == status
    assert "in hold_the_gil" in stacks


def sleep_here(path):
    return wait_for(path)


def miss_a_timeout(rank, size, folder):
    dist.all_reduce(torch.ones(1))  # a rank that has never called anything is not connected
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    with writer_in(folder) as files:
        own = files / f"operations-rank-{rank}.json"
        if rank == 1:
            sleep_here(own)  # in Python; the engine's own thread learns of the failure
            return json.loads(own.read_text()), wait_for(files / "stacks-rank-1.txt")
        try:
            dist.all_reduce(torch.ones(8), group=group)
        except dist.DistBackendError:
            return json.loads(wait_for(own)), last_fault()
    return "no error"


def test_a_timeout_has_the_stacks_of_the_late_rank(world, tmp_path):
    (first, fault), (late, stacks) = world.run(miss_a_timeout, str(tmp_path), size=2)

    assert ("failure", "timeout", 1) == (
        late["reason"],
        late["fault"]["kind"],
        late["fault"]["culprit"],
    )
    assert "in sleep_here" in stacks
    assert "failed" == first["operations"][-1]["state"]
    (named,) = fault.late_ranks
    assert (1, False) == (named["rank"], named["has_come"])


def log_of_rank_0(rank, size, folder):
    dist.destroy_process_group()
    connect._engine_limits["late_seconds"] = 0.3
    try:
        dist.init_process_group(
            "smdist", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size
        )
    finally:
        connect._engine_limits.clear()
    done = Path(folder, "done")
    if rank == 1:
        wait_for(done)
        dist.all_reduce(torch.ones(8))
        return ""
    log = Path(folder, "log")
    with log.open("wb") as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            work = dist.all_reduce(torch.ones(8), async_op=True)
            deadline = time.monotonic() + 30
            while "not come" not in log.read_text() and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    done.touch()
    work.wait()
    return log.read_text()


def test_a_late_rank_is_named_in_the_log(world, tmp_path):
    said, _ = world.run(log_of_rank_0, str(tmp_path), size=2)

    assert "smdist: operation " in said
    assert "all_reduce(sum, float32, 8" in said
    assert "rank 1 on " in said
    assert " has not come after " in said


def leave_a_child_alone(rank, size, folder):
    with writer_in(folder):
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGUSR2)
            os._exit(0)
        return os.waitpid(child, 0)[1], Path(folder, "smdist-debug").exists()


def test_a_forked_child_has_the_default_of_the_signal(world, tmp_path):
    assert [(signal.SIGUSR2, False)] == world.run(leave_a_child_alone, str(tmp_path), size=1)
