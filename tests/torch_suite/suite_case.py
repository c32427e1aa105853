# SPDX-License-Identifier: Apache-2.0
"""The suite's tests, read under Gloo's name and run under another."""

import logging
import multiprocessing
import os

from torch.testing._internal import common_distributed
from torch.testing._internal.distributed import distributed_test

import smdist.dataparallel.torch  # noqa: F401  registers the backend

_SHARES_GPUS = "SMDIST_SUITE_SHARED_GPUS" in os.environ
_BACKEND = os.environ["SMDIST_SUITE_BACKEND"]


class BesideGloo(str):
    """A backend's name that stands wherever a test of the suite asks for Gloo's."""

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    __hash__ = str.__hash__


for _table in ("", "SEND_RECV_", "CUDA_"):
    getattr(distributed_test, f"{_table}PROFILING_SUPPORTED_BACKENDS").append(_BACKEND)
distributed_test.BACKEND = BesideGloo(_BACKEND)
common_distributed.logger.setLevel(logging.WARNING)  # stacks, and not each start of a rank


def run_with(environ, target, args, kwargs):
    """A forked rank has the environment of the server; the suite counts on its parent's."""
    os.environ.update(environ)
    distributed_test.INIT_METHOD = environ["INIT_METHOD"]
    if _SHARES_GPUS:
        import shared_gpus

        shared_gpus.share(int(environ["WORLD_SIZE"]))
    target(*args, **kwargs)


def process(target, name, args, kwargs):
    """A rank, forked from a process that has imported all this."""
    context = multiprocessing.get_context("forkserver")
    return context.Process(
        target=run_with, name=name, args=(dict(os.environ), target, args, kwargs)
    )


class SuiteCase(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """One test, with a process for each rank."""

    def setUp(self):
        super().setUp()
        self._start_processes(process)

    def _check_return_codes(self, *args):
        """All ranks end alike; torch looks at the first rank's end alone."""
        super()._check_return_codes(*args)
        ends = [rank.exitcode for rank in self.processes]

        assert 1 == len(set(ends)), f"the ranks' exit codes are {ends}"
