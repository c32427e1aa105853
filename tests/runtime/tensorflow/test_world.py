# SPDX-License-Identifier: Apache-2.0
"""Ranks of TensorFlow join, leave and join again; a rank that ends with an error is named."""

import json
import os
import subprocess
import sys

from ports import free_port

from sagemaker_dist.errors import LaunchError, OptionError

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def total(value):
    import tensorflow as tf

    from smdist.dataparallel.tensorflow import op_library

    tensors = [tf.constant([float(value)])]
    return op_library.wait(op_library.start(tensors, "sum"), tensors)[0].numpy().tolist()


def join_twice(rank, size):
    from smdist.dataparallel.tensorflow import basics

    seen = []
    for _ in range(2):
        basics.init()
        basics.init()
        seen.append((basics.rank(), basics.size(), basics.local_rank(), basics.local_size()))
        seen.append((basics.is_initialized(), basics.engine().is_running(), total(rank + 1)))
        basics.shutdown()
        basics.shutdown()
        seen.append(basics.is_initialized())
    return seen


def test_ranks_join_and_leave_and_join_again(tf_world):
    """Twice init() or shutdown() is once."""
    one, other = tf_world.run(join_twice, size=2)

    assert [(0, 2, 0, 2), (True, True, [3.0]), False] * 2 == one
    assert [(1, 2, 1, 2), (True, True, [3.0]), False] * 2 == other


_CALLS = {  # name of a function -> arguments
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "join", "barrier"), ()),
    **{name: ([1.0],) for name in ("allreduce", "allgather", "alltoall", "reducescatter")},
    **{name: ([[1.0]],) for name in ("grouped_allreduce", "grouped_allgather")},
    "broadcast": ([1.0], 0),
    "broadcast_object": (1, 0),
    "add_process_set": ([0],),
    "start_timeline": ("none",),
}


def ask_before(rank, size):
    import smdist.dataparallel.tensorflow as sdp

    said = [sdp.is_initialized()]
    for name, args in _CALLS.items():
        try:
            getattr(sdp, name)(*args)
        except OptionError as error:
            called = str(error).partition("()")[0]
            said.append((called, *error.about, error.kind, "hvd.init()" in error.hint))
    return said


def test_before_init_every_question_is_refused_by_name(tf_world):
    said = [(name, name, "too_early", True) for name in _CALLS]

    assert [[False, *said]] == tf_world.run(ask_before, size=1)


def join_alone(rank, size):
    from smdist.dataparallel.tensorflow import basics

    for name in NUMBERS:
        os.environ.pop(name)
    basics.init()
    return basics.rank(), basics.size(), basics.local_rank(), basics.local_size(), total(7)


def test_a_process_that_is_no_rank_is_alone(tf_world):
    """Collectives of one rank give back what they got."""
    assert [(0, 1, 0, 1, [7.0])] == tf_world.run(join_alone, size=1)


def wait_alone(rank, size):
    from smdist.dataparallel.tensorflow import basics

    os.environ["SMDIST_START_TIMEOUT_SECONDS"] = "1"
    try:
        if rank == 0:
            basics.init()
    except LaunchError as error:
        return str(error), error.kind, basics.is_initialized()
    finally:
        del os.environ["SMDIST_START_TIMEOUT_SECONDS"]
    return None


def test_a_rank_that_never_joins_is_named(tf_world):
    (said, kind, is_initialized), _ = tf_world.run(wait_alone, size=2)

    assert "timeout" == kind
    assert "rank 1 " in said
    assert not is_initialized


def ask_in_child(rank, size):
    """Return what a forked child sees; its end does not disturb the rank."""
    from smdist.dataparallel.tensorflow import basics

    basics.init()
    theirs, ours = os.pipe()
    if (child := os.fork()) == 0:
        said = [str(basics.is_initialized()), str(basics.rank())]
        for ask in (basics.engine, basics.init):
            try:
                ask()
            except OptionError as error:
                said.append(f"{error.about[0]} {error.kind}")
        basics.shutdown()
        os.write(ours, "\n".join(said).encode())
        os._exit(0)
    os.close(ours)
    os.waitpid(child, 0)
    with os.fdopen(theirs) as pipe:
        return pipe.read().split("\n"), total(1)


def test_a_forked_child_knows_its_rank_and_leaves_the_engine_alone(tf_world):
    """Such as one that reads data."""
    for rank, (said, sums) in enumerate(tf_world.run(ask_in_child, size=2)):
        assert ["False", str(rank), "engine forked", "init forked"] == said
        assert [2.0] == sums


PROGRAM = """
from engine_faults import fault_fields
from smdist.dataparallel.tensorflow import basics, op_library
import tensorflow as tf
basics.init()
if basics.rank() == 1:
    raise ValueError("no such file")
tensors = [tf.constant([1.0])]
try:
    op_library.wait(op_library.start(tensors, "sum"), tensors)
except tf.errors.AbortedError:
    print("FAULT", *fault_fields())
    raise
"""


def test_a_rank_that_raises_is_named_with_its_reason():
    """Two scripts: the error of the one that continues has the reason why the other ended."""
    port = free_port()
    processes = []
    for rank in range(2):
        numbers = dict(zip(NUMBERS, (str(rank), "2", str(rank), "2"), strict=True))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SMDIST_LANES": "1"}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
        environ = {**os.environ, **numbers, **place, **quiet}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        (fields, said), _ = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()

    assert [1, 1] == [process.returncode for process in processes]
    assert "FAULT aborted 1 \n" == fields
    assert "raised ValueError: no such file" in said


FAILS_ALONE = """
from smdist.config import read_rank_config
from smdist.dataparallel.rendezvous.engine_setup import connect_world
from smdist.dataparallel.rendezvous.world import world_of

config = read_rank_config()
connect_world(world_of(config), config, None)  # no module: it fails before there is an engine
"""


def test_an_error_of_the_start_leaves_its_fields(tmp_path):
    """The launcher reads the kind of the error from there, not from its text."""
    own = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "SMDIST_START_TIMEOUT_SECONDS": "1",
        "SMDIST_FAULT_FILE": str(tmp_path / "fault.json"),
    }
    command = [sys.executable, "-c", FAILS_ALONE]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, timeout=60)

    assert 1 == done.returncode, done.stderr
    fault = json.loads((tmp_path / "fault.json").read_text())
    assert ("LaunchError", "timeout") == (fault["exception"], fault["kind"])
    assert 1 == fault["culprit"]  # the rank that is late, not the one that reports it
