# SPDX-License-Identifier: Apache-2.0
"""Function join() of Horovod: ranks with more data go on without those that have no more."""

from __future__ import annotations

import zlib
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.join_ranks import join_ranks
from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.op_library import compiled, tf

_CONTROL: Final = zlib.crc32(b"join") & 0x7FFFFFFF  # number of the group in which ranks join
_EVERYONE: Final = 0


def join() -> int:
    """Wait until all ranks have joined; meanwhile take part in their all-reduces with zeros.

    A rank that has no more data calls it, after the results of its own collectives are there, so
    that ranks with more data can go on. Averages are still divided by the number of all ranks.
    Other collectives than all-reduces of dense tensors with op Sum or Average fail on all ranks
    while a rank has joined, and so do collectives of process sets that wait for such a rank, after
    the job's timeout. Ranks that have not joined send nothing more than without join().

    Returns:
        The rank that has joined last: the one that has started the most collectives, and of several
        the highest. It is the same on all ranks.

    Raises:
        OptionError: It is called in a tf.function or in the graph of a session, or init() was not
            called.
        RuntimeError: A rank was lost, or has not joined within the job's timeout_seconds.
    """
    engine, size = basics.engine("join"), basics.size()
    if not tf.executing_eagerly():
        raise OptionError(
            "join() was called in a graph",
            "a rank joins once, after its last batch, and a graph may run at any time",
            "Call it in the script, after the loop that runs the tf.function",
            about="join",
            kind="graph",
        )
    if size == 1:
        return 0
    compiled().add_group(_CONTROL, list(range(size)))
    groups = [_EVERYONE, compiled().join_by_name()]
    return join_ranks(compiled(), engine, groups, _CONTROL, basics.timeout_seconds())
