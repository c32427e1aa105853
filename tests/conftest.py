# SPDX-License-Identifier: Apache-2.0
"""How tests are shared out where several processes run them: `make test`.

Each process takes one file after the other, in the order of their names but for the longest, which
start first. Nothing has to run alone: tests name their ports, folders and processes by what pytest
gives them, and limits of time are those of a machine with several times more processes than
processors. Plain `pytest` runs everything in one process.
"""

import faulthandler
import gc
import os
import signal
import sys
from contextlib import suppress
from itertools import chain, zip_longest

import pytest

# OpenMP's threads spin while they wait for each other: on busy processors two of them take six
# times the seconds of one, in tests and in ranks, which inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
# A shell without job control starts what runs in its background with SIGINT ignored, and processes
# inherit that: those that tests start would not hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# No test looks at machine images, and each new account of moto's would make 1,296: half a second.
os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")

# Files that one process takes, for the fixtures that they share: TensorFlow's ranks take 10 CPU
# seconds to start and to trace their first functions, those of torch 5, and so do the processes
# from which those of the test device are forked.
TOGETHER = (
    ("tests/runtime/tensorflow/", "tests/runtime/elastic/test_horovod_names.py"),
    ("tests/runtime/modelparallel/tensorflow/",),
    ("tests/runtime/modelparallel/torch/device/",),
    (
        "tests/runtime/test_device/",
        *(
            f"tests/runtime/dataparallel/test_{name}"
            for name in (
                "staging",
                "two_level",
                "shared_slots",
                "device_pipelines",
                "progress_on_a_device",
            )
        ),
    ),
)
# Files whose tests share nothing and take minutes each, so that one process would take longer for
# the file than the others for all the rest. They start first: a test that computes, then one that
# mostly waits for sleeps and deadlines, and so on. So the processors always have work.
COMPUTING = (
    "tests/integration/test_resumable_jobs.py",
    "tests/integration/test_notebooks.py",
    "tests/integration/test_smp_scripts.py",
    "tests/integration/test_horovod_scripts.py",
    "tests/integration/test_elastic_jobs.py",
    "tests/integration/test_tensorflow_jobs.py",
    "tests/runtime/modelparallel/torch/zoo/test_big.py",
    "tests/runtime/modelparallel/core/layout/test_search_size.py",
)
WAITING = (
    "tests/runtime/dataparallel/test_blips.py",
    "tests/runtime/dataparallel/test_fault_rows.py",
    "tests/runtime/dataparallel/test_soak.py",
)
APART = COMPUTING + WAITING
STDERR = pytest.StashKey[int]()
SHRINKING_SECONDS = 60


def pytest_addoption(parser):
    """Add the option by which CI runs a sample of the slow tests."""
    parser.addoption(
        "--cases",
        choices=["all", "first"],
        default="all",
        help="run all cases of each slow test, or the first one, and none that is marked long",
    )


def pytest_configure(config):
    """Keep what nobody captures: pytest-timeout's own stacks are lost in a process of xdist.

    Limit the time in which hypothesis simplifies a failing example: it is reported after that.
    """
    with suppress(ImportError):  # make test-v3 has no hypothesis
        from hypothesis.internal.conjecture import engine

        engine.MAX_SHRINKING_SECONDS = SHRINKING_SECONDS
    if hasattr(config, "workerinput"):
        config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect without the collector of garbage, which would walk all imported modules many times.

    Each process of xdist collects all tests, so none may import what few tests take.

    Raises:
        pytest.UsageError: A test module imports TensorFlow, which takes each process 7 s.
    """
    gc.disable()
    try:
        result = yield
    finally:
        gc.enable()
    if "tensorflow" in sys.modules:
        raise pytest.UsageError("tests import TensorFlow in ranks, or in functions: not on top")
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what `--cases=first` does not run, and choose the order of the rest.

    A process of xdist runs the longest tests first; plain `pytest` keeps the order of names.
    At the end of a run each process then has a short file left, and none waits for the others.
    """
    if config.getoption("cases") == "first":
        left_out = set(further_slow_cases(items))
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    if not hasattr(config, "workerinput"):
        return
    files = [item.nodeid.partition("::")[0] for item in items]
    computing, waiting = (
        [item for name in group for file, item in zip(files, items, strict=True) if file == name]
        for group in (COMPUTING, WAITING)
    )
    first = chain.from_iterable(zip_longest(computing, waiting))
    rest = [item for file, item in zip(files, items, strict=True) if file not in APART]
    together = tuple(chain.from_iterable(TOGETHER))
    rest.sort(key=lambda item: not item.nodeid.startswith(together))  # they take minutes, too
    items[:] = [item for item in first if item is not None] + rest


def further_slow_cases(items):
    """Yield the slow cases of each test but its first one, and all of those marked `long`."""
    seen = set()
    for item in items:
        if item.get_closest_marker("slow") is None:
            continue
        test = item.nodeid.partition("[")[0]
        if test in seen or item.get_closest_marker("long") is not None:
            yield item
        seen.add(test)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item, settings):
    """In a process of xdist, a test that hangs prints every thread's stack and ends the process.

    xdist reports the test as failed, and another process goes on with the next one.
    """
    if STDERR not in item.config.stash:
        return None
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[STDERR])
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item):
    """The test has ended in time."""
    if STDERR not in item.config.stash:
        return None
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With --dist loadscope, share out by file, and by folder where files belong together."""
    if config.getoption("dist") != "loadscope":
        return None  # one test at a time, as xdist does
    from file_scheduler import FileScheduler  # not everybody has xdist

    return FileScheduler(config, log, TOGETHER, APART)
