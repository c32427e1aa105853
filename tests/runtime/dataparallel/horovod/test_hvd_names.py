# SPDX-License-Identifier: Apache-2.0
"""The page "From Horovod" has each name of horovod.torch, and says the truth about it."""

import re
from pathlib import Path

import pytest

import smdist.dataparallel.torch.horovod as hvd
from smdist.dataparallel.torch.horovod.refused_names import REFUSED
from smdist.launch import horovodrun_options

WHOLE = (Path(__file__).parents[4] / "docs/from_horovod.md").read_text()
PAGE = WHOLE.partition("## TensorFlow and Keras")[0]
OURS = {"GradientRaceError", "HorovodMismatchError"}  # names that Horovod does not have

# What `horovod.torch` of 0.28.1 exports, with is_homogeneous(), which its documentation names.
HOROVOD = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "check_extension",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def rows():
    return dict(re.findall(r"^\| `(\w+)` \| (same|different|refused) \|", PAGE, re.M))


def test_page_has_every_name_once():
    names = re.findall(r"^\| `(\w+)` \| (?:same|different|refused) \|", PAGE, re.M)

    assert sorted(HOROVOD) == sorted(names)


def test_names_are_as_the_page_says():
    """What is the same or different is there; what is refused raises its reason."""
    assert {name for name, here in rows().items() if here != "refused"} | OURS == set(hvd.__all__)
    assert {name for name, here in rows().items() if here == "refused"} == set(REFUSED)
    for name in hvd.__all__:
        assert hasattr(hvd, name)
    for name in REFUSED:
        with pytest.raises(AttributeError):
            getattr(hvd, name)


def test_differences_are_explained():
    """A row that is not the same says how it differs, or why it is refused."""
    short = re.findall(r"^\| `(\w+)` \| (?:different|refused) \| .{0,10}\|$", PAGE, re.M)

    assert [] == short


def test_elastic_names_are_as_the_page_says():
    """Each name of horovod.torch.elastic and its states that the page does not refuse is there."""
    names = re.findall(r"^\| `((?:elastic|torch\.elastic|State)\.\w+)` \| (\w+) \|", PAGE, re.M)
    there = {name.rpartition(".")[2] for name, here in names if here != "refused"}
    methods = {name.removeprefix("State.") for name, _ in names if name.startswith("State.")}

    assert set(hvd.elastic.__all__) == there - methods
    assert methods == {each for each in methods if hasattr(hvd.elastic.TorchState, each)}
    assert 6 == len(methods)


def test_options_of_horovodrun_are_as_the_page_says():
    """The table has each option that is carried out, without effect or refused, once."""
    table = WHOLE.partition("## horovodrun\n")[2]
    rows = re.findall(r"^\| (`-.*?`) \| (same|different|refused) \|", table, re.M)
    words = [(word, here) for names, here in rows for word in re.findall(r"`(.*?)`", names)]
    carried_out = {*horovodrun_options._VALUES, *horovodrun_options._SWITCHES}
    without_effect = set(horovodrun_options._IGNORED)

    assert carried_out | without_effect == {word for word, here in words if here != "refused"}
    assert set(horovodrun_options._REFUSED) == {word for word, here in words if here == "refused"}
    assert len({word for word, _ in words}) == len(words)
