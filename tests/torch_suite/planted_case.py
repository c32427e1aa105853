# SPDX-License-Identifier: Apache-2.0
"""Tests that must not pass: whoever runs the suite has to say so of each."""

import os
import signal
import time
import unittest

import torch
import torch.distributed as dist
from suite_case import SuiteCase


class PlantedCase(SuiteCase):
    """One fault in each test; the name says which."""

    _dies_when_all_are_done = False

    def test_one_rank_hangs(self):
        if self.rank == 1:
            time.sleep(3600)
        dist.barrier()

    def test_all_ranks_skip(self):
        raise unittest.SkipTest("planted")

    def test_a_sum_is_wrong(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)

        assert 2 == tensor.item()

    def test_last_rank_dies_at_work(self):
        if self.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def test_last_rank_dies_at_the_end(self):
        self._dies_when_all_are_done = self.rank == 2

    def _barrier(self, *args, **kwargs):
        super()._barrier(*args, **kwargs)
        if self._dies_when_all_are_done:
            os.kill(os.getpid(), signal.SIGKILL)
