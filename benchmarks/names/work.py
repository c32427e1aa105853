# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: all-reduces of TensorFlow, numbered or matched by name."""

from __future__ import annotations

import time

import tensorflow as tf

import smdist.dataparallel.tensorflow as sdp

_ONES = tf.ones([256])  # 1 KiB


def numbered(iterations: int) -> tuple[float, float]:
    """All-reduce 1 KiB, matched by the order of the calls."""
    return _timed(iterations, None)


def by_name(iterations: int) -> tuple[float, float]:
    """All-reduce 1 KiB, matched by name."""
    return _timed(iterations, "loss")


def _timed(iterations: int, name: str | None) -> tuple[float, float]:
    """Return the wall and processor seconds of the all-reduces, one after another."""
    sdp.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(iterations):
        sdp.allreduce(_ONES, op=sdp.Sum, name=name)
    return time.perf_counter() - wall, time.process_time() - cpu
