# SPDX-License-Identifier: Apache-2.0
"""Rank of two that sums when its standard input says so, and prints what came of it.

A line is a number of floats; the rank answers with "sums", or with the kind and the culprit of the
fault. An empty input ends the rank.
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import smdist.dataparallel.torch
from smdist.dataparallel.rendezvous.engine_shutdown import last_fault

SIZE = 2


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("smdist", rank=rank, world_size=SIZE, timeout=timedelta(seconds=300))
    print("ready", flush=True)
    for line in sys.stdin:
        values = torch.full((int(line),), float(rank + 1))
        begin = time.monotonic()
        try:
            dist.all_reduce(values)
        except RuntimeError:
            fault = last_fault()
            print(fault.text, file=sys.stderr, flush=True)
            print(f"{fault.kind} {fault.culprit} {time.monotonic() - begin:.2f}", flush=True)
            continue
        is_right = bool((values == 3).all())
        print("sums" if is_right else f"wrong sums: {values.unique()}", flush=True)
    os._exit(0)


main()
