# SPDX-License-Identifier: Apache-2.0
"""What lies around a forward pass: random numbers, logs and the compiler, left as they were."""

from __future__ import annotations

import logging
import random
import sys
import warnings
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager

import torch


def python_draws() -> Hashable:
    """Differs once Python or NumPy has drawn a random number, or PyTorch was seeded anew."""
    _, numbers, gauss = random.getstate()
    seed = torch.initial_seed()
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return seed, numbers[0], numbers[-1], gauss
    _, keys, *rest = numpy.random.get_state()
    return seed, numbers[0], numbers[-1], gauss, int(keys[0]), *rest


@contextmanager
def untouched() -> Iterator[None]:
    """All random numbers afterwards are as they were; nothing is warned of or logged meanwhile.

    What a model warns of, it warns of again when it runs.
    """
    ours, numpy = random.getstate(), sys.modules.get("numpy")
    theirs = numpy.random.get_state() if numpy else None
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        random.setstate(ours)
        if numpy is not None:
            numpy.random.set_state(theirs)


@contextmanager
def uncompiled() -> Iterator[None]:
    """What is compiled runs as it was written. Where nothing is, the compiler is not loaded."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
