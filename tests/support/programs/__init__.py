# SPDX-License-Identifier: Apache-2.0
"""Random programs of collectives whose results are known.

A program is a pure function of its seed. Every rank draws the whole program: the calls of
all ranks, the inputs of each rank, and so the results.

    drawing   the seed -> a program: groups and calls
    meaning   a call -> the input of each member, and its expected result
    playing   a program -> calls of torch.distributed, compared with the meaning
"""

from programs.playing import play

__all__ = ["play"]
