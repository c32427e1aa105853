# SPDX-License-Identifier: Apache-2.0
"""Analysis of the operations of all ranks of a job that hangs or has failed."""

from sagemaker_dist.debugging.divergence import Divergence, find_divergences
from sagemaker_dist.debugging.dump_files import FOLDER, Dumps, read_dumps, read_tar, request_dumps
from sagemaker_dist.debugging.operations import Operation, RankHistory
from sagemaker_dist.debugging.report import report_of, sentences

__all__ = [
    "FOLDER",
    "Divergence",
    "Dumps",
    "Operation",
    "RankHistory",
    "find_divergences",
    "read_dumps",
    "read_tar",
    "report_of",
    "request_dumps",
    "sentences",
]
