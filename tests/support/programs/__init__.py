# SPDX-License-Identifier: Apache-2.0
"""Random programs of collectives that know their own results.

A program is a pure function of its seed. Every rank draws the whole of it: what
all ranks call, what each of them brings, and so what comes out.

    drawing   the seed -> a program: groups and calls
    meaning   a call -> what each member brings, and what it must have afterwards
    playing   a program -> calls of torch.distributed, compared with the meaning
"""

from programs.playing import play

__all__ = ["play"]
