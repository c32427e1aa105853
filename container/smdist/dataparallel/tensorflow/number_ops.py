# SPDX-License-Identifier: Apache-2.0
"""Numbers of ranks as tensors: Horovod's size_op() and its like, and cuda_built()."""

from __future__ import annotations

from typing import Any

from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.op_library import tf


def rank_op(name: str | None = None) -> Any:
    """Return this rank's number in the job, int32 [].

    Raises:
        OptionError: init() was not called.
    """
    return tf.constant(basics.rank(), tf.int32, name=name or "smdist_rank")


def size_op(name: str | None = None) -> Any:
    """Return the number of ranks of the job, int32 [].

    Raises:
        OptionError: init() was not called.
    """
    return tf.constant(basics.size(), tf.int32, name=name or "smdist_size")


def local_rank_op(name: str | None = None) -> Any:
    """Return this rank's number on its host, int32 [].

    Raises:
        OptionError: init() was not called.
    """
    return tf.constant(basics.local_rank(), tf.int32, name=name or "smdist_local_rank")


def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks on this host, int32 [].

    Raises:
        OptionError: init() was not called.
    """
    return tf.constant(basics.local_size(), tf.int32, name=name or "smdist_local_size")


def cuda_built() -> bool:
    """Return False: tensors of GPUs are copied to the host before they are reduced."""
    return False
