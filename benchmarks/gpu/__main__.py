# SPDX-License-Identifier: Apache-2.0
"""Benchmark of tensors on GPUs, beside pinned copies, Gloo and NCCL; see README.md."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from math import isclose
from typing import Any

import torch

from benchmarks.gpu.devices import VARIABLE
from benchmarks.gpu.rows import COLUMNS, Row
from benchmarks.harness.hosts import Host
from benchmarks.harness.interleave import interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, size_text, table

WORK, DDP, PIPELINE = (f"benchmarks.gpu.{name}" for name in ("work", "ddp_work", "pipeline_work"))
MIB = 1 << 20
COPY_GOAL, GLOO_GOAL, PRODUCT_GOAL = 0.85, 2.0, 0.98
ONE, TWO = [Host(0)], [Host(0)] * 2


def staging(arguments: argparse.Namespace) -> Iterator[Row]:
    """An all-reduce of one rank is a copy to the host and one back, in pieces."""
    with Ranks("smdist", ONE) as alone:
        for size in arguments.sizes:
            alone.call(f"{WORK}:prepare", size=size, dtype="float32")
            alone.call(f"{WORK}:prepare_copies")
            names = {"smdist": "all_reduce", "copies": "copies"}
            work = {key: (alone, f"{WORK}:{name}") for key, name in names.items()}
            series = interleave(work, arguments.rounds)
            yield Row(
                what="staging of one rank, both directions at once",
                size=size_text(size),
                own=series["smdist"],
                beside="pinned copies",
                other=series["copies"],
                goal=COPY_GOAL,
            )


def all_reduces(arguments: argparse.Namespace) -> Iterator[Row]:
    """All-reduces of two ranks, beside Gloo and, with two GPUs, NCCL."""
    with ExitStack() as stack:
        everyone = _everyone(stack, arguments)
        for dtype in arguments.dtypes:
            for size in arguments.sizes:
                for ranks in everyone.values():
                    ranks.call(f"{WORK}:prepare", size=size, dtype=dtype)
                what = f"all-reduce of 2 ranks, {dtype}"
                yield from _beside(everyone, f"{WORK}:all_reduce", what, size_text(size), arguments)


def ddp_steps(arguments: argparse.Namespace) -> Iterator[Row]:
    """DDP steps of two ranks, beside Gloo and, with two GPUs, NCCL."""
    with ExitStack() as stack:
        everyone = _everyone(stack, arguments)
        model = {"layers": arguments.layers, "width": arguments.width}
        sizes = [ranks.call(f"{DDP}:prepare", **model)[0] for ranks in everyone.values()]
        yield from _beside(everyone, f"{DDP}:steps", "DDP step", size_text(sizes[0]), arguments)


def products(arguments: argparse.Namespace) -> Iterator[Row]:
    """Matrix products on rank 0 beside all-reduces, and alone."""
    size, side = arguments.sizes[-1], arguments.side
    with Ranks("smdist", TWO) as ranks:
        ranks.call(f"{WORK}:prepare", size=size, dtype="float32")
        ranks.call(f"{WORK}:prepare_product", side=side)
        names = ("products_beside", "products_alone")
        series = interleave({name: (ranks, f"{WORK}:{name}") for name in names}, arguments.rounds)
    yield Row(
        what=f"matrix product beside all-reduces of {size_text(size)}",
        size=f"{side} x {side}",
        own=series["products_beside"],
        beside="alone",
        other=series["products_alone"],
        goal=PRODUCT_GOAL,
    )


def pipelines(arguments: argparse.Namespace) -> Iterator[Row]:
    """Steps of a GPT on two ranks, beside torch's pipelining over smdist, and one process."""
    with ExitStack() as stack:
        everyone = {
            "smdist": stack.enter_context(Ranks("smdist", TWO, name="smdist")),
            "torch's 1F1B over smdist": stack.enter_context(Ranks("smdist", TWO, name="now")),
            "one process": stack.enter_context(Ranks("smdist", ONE, name="before")),
        }
        functions = ("by_smdist", "by_torch", "one_process")
        squares = {
            name: sum(ranks.call(f"{PIPELINE}:{function}"))
            for (name, ranks), function in zip(everyone.items(), functions, strict=True)
        }
        for name, found in squares.items():
            assert isclose(found, squares["one process"], rel_tol=1e-3), f"{name}: other gradients"
        yield from _beside(
            everyone, f"{PIPELINE}:steps", "pipeline step of 2 ranks", "-", arguments
        )


def _everyone(stack: ExitStack, arguments: argparse.Namespace) -> dict[str, Ranks]:
    """Return two ranks of smdist, of Gloo, and of NCCL where each has a GPU of its own."""
    peers = ["smdist", "gloo"]
    if arguments.device == "cuda" and torch.cuda.device_count() > 1:
        peers.append("nccl")
    return {peer: stack.enter_context(Ranks(peer, TWO)) for peer in peers}


def _beside(
    everyone: dict[str, Ranks], function: str, what: str, size: str, arguments: argparse.Namespace
) -> Iterator[Row]:
    work = {name: (ranks, function) for name, ranks in everyone.items()}
    series = interleave(work, arguments.rounds)
    for name in everyone:
        if name != "smdist":
            yield Row(
                what=what,
                size=size,
                own=series["smdist"],
                beside={"gloo": "Gloo", "nccl": "NCCL over sockets"}.get(name, name),
                other=series[name],
                goal=GLOO_GOAL if name == "gloo" else None,
            )


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "staging": staging,
    "all-reduce": all_reduces,
    "ddp": ddp_steps,
    "product": products,
    "pipeline": pipelines,
}


def main() -> int:
    arguments = _arguments()
    os.environ[VARIABLE] = arguments.device
    rows: list[Row] = []
    failed: list[str] = []
    for name in arguments.only:
        try:
            for row in MEASUREMENTS[name](arguments):
                print(" | ".join(row.cells()), flush=True)
                rows.append(row)
        except (Exception, SystemExit):
            traceback.print_exc()
            failed.append(name)
    text = "\n".join([table(COLUMNS, [row.cells() for row in rows]), *map(_failure, failed)])
    print(f"\n{_device(arguments)}; {machine()}\n\n{text}")
    numbers: list[dict[str, Any]] = [asdict(row) for row in rows]
    save("gpu", f"{_device(arguments)}\n\n{text}", numbers)
    return 1 if failed or not rows else 0


def _failure(name: str) -> str:
    return f"\n`{name}` failed: its rows are missing."


def _device(arguments: argparse.Namespace) -> str:
    if arguments.device != "cuda":
        return f"On the device {arguments.device} of the tests: no figure of a GPU"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    shared = "" if len(names) > 1 else ", which ranks share"
    return f"{len(names)} x {names[0]}{shared}; torch {torch.__version__}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("gpu", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "testdev"], default="cuda")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--layers", type=int, help="of the model of the DDP step")
    parser.add_argument("--width", type=int, help="of a layer")
    parser.add_argument("--side", type=int, help="of a matrix")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    is_gpu = arguments.device == "cuda"
    arguments.sizes = arguments.sizes or [
        each * MIB for each in ((1, 25, 100, 256) if is_gpu else (1,))
    ]
    arguments.layers = arguments.layers or (24 if is_gpu else 2)
    arguments.width = arguments.width or (2048 if is_gpu else 64)
    arguments.side = arguments.side or (8192 if is_gpu else 64)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
