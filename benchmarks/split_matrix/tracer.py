# SPDX-License-Identifier: Apache-2.0
"""Test of torch.distributed.pipelining's `pipeline()` on the same models: processes, 1F1B, Gloo.

The use favours `pipeline()`: the model returns one tensor, no mask is passed, each stage gets the
keyword arguments that it takes, the loss is outside, and stages begin at units. Gradients are
compared with those of the whole model for the same microbatches. A stage without news for a
while counts as hanging.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist
from torch.distributed.pipelining import Schedule1F1B, SplitPoint, pipeline

from benchmarks.harness.models import zoo
from smdist.modelparallel.torch.capture import capture

STAGES, ROWS = 3, 4
TOLERANCE = 1e-4
START_SECONDS, SILENCE_SECONDS = 180.0, 40.0


class OneTensor(nn.Module):
    """Wrapper of a transformers model that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.model(*args, **kwargs)
        return output if isinstance(output, Tensor) else output.logits


def verdict(name: str) -> str:
    """Run `pipeline()` on a model and return the outcome in a few words."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        ranks = [
            context.Process(target=_rank, args=(rank, name, meeting, results), daemon=True)
            for rank in range(STAGES)
        ]
        for each in ranks:
            each.start()
        result = _first_bad(results)
        for each in ranks:
            each.kill()
            each.join()
    return result


def _first_bad(results: Any) -> str:
    worst, parameter, ready, done = 0.0, "", 0, 0
    while done < STAGES:
        try:
            result = results.get(timeout=SILENCE_SECONDS if ready == STAGES else START_SECONDS)
        except queue.Empty:
            return "hangs"
        if result is None:
            ready += 1
        elif isinstance(result, str):
            return result
        else:
            worst, parameter = max((worst, parameter), result)
            done += 1
    if worst > TOLERANCE:
        return f"**wrong gradients**: `{parameter}` by {worst:.0%} of its norm"
    return f"ok, {worst:.0e}" if worst else "ok, 0"


def _rank(rank: int, name: str, meeting: str, results: Any) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=STAGES,
            timeout=timedelta(seconds=START_SECONDS),
        )
        results.put(_step(rank, name, results))
    except Exception as failure:  # any failure is the result
        results.put(_in_short(failure))
    queue.Queue().get()  # stay alive for the other ranks until this process is killed


def _in_short(failure: BaseException) -> str:
    """Return the first sentence of the exception at the start of the chain."""
    while failure.__cause__ is not None:
        failure = failure.__cause__
    lines = str(failure).strip().splitlines() or [""]
    return f"raises {type(failure).__name__}: {lines[0].split('. ')[0]}"


def _step(rank: int, name: str, results: Any) -> tuple[float, str]:
    model, args, kwargs = _subject(name)
    expected = _expected(model, args, kwargs)
    part_args, part_kwargs = _part((args, kwargs), 0)
    names = _beginnings(model, part_args, part_kwargs)
    pipe = pipeline(
        model,
        mb_args=part_args,
        mb_kwargs=part_kwargs,
        split_spec=dict.fromkeys(names, SplitPoint.BEGINNING),
    )
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = Schedule1F1B(stage, ROWS, loss_fn=lambda output, _: output.square().mean())
    results.put(None)  # the remaining step takes only moments
    wanted = {node.name for node in stage.submod.graph.nodes if node.op == "placeholder"}
    given = {key: tensor for key, tensor in kwargs.items() if key in wanted}
    target = {"target": torch.zeros(ROWS)} if rank == STAGES - 1 else {}
    schedule.step(*(args if rank == 0 else ()), **given, **target)
    return max(
        (_difference(expected[key], parameter.grad), key)
        for key, parameter in stage.submod.named_parameters()
    )


def _subject(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    specimen = zoo.tiny(name, rows=ROWS)
    if isinstance(specimen.batch, tuple):
        return OneTensor(specimen.model), specimen.batch, {}
    batch = dict(specimen.batch)
    labels = batch.pop("labels")
    batch.pop("attention_mask", None)
    if name in ("t5", "whisper"):
        batch["decoder_input_ids"] = labels
    return OneTensor(specimen.model), (), batch


def _part(batch: Any, number: int) -> Any:
    """Return one microbatch, which is a row."""
    row = slice(number, number + 1)
    return torch.utils._pytree.tree_map(lambda tensor: tensor[row], batch)


def _expected(model: nn.Module, args: Any, kwargs: Any) -> dict[str, Tensor | None]:
    """Return gradients of the mean over microbatches, by every name of each parameter."""
    for number in range(ROWS):
        part_args, part_kwargs = _part((args, kwargs), number)
        (model(*part_args, **part_kwargs).square().mean() / ROWS).backward()
    every = model.named_parameters(remove_duplicate=False)
    expected = {key: parameter.grad for key, parameter in every}
    model.zero_grad(set_to_none=True)
    return expected


def _beginnings(model: nn.Module, args: Any, kwargs: Any) -> list[str]:
    """Return the first unit of each stage but the first, with equal numbers of units."""
    units = [unit.module for unit in capture(model, kwargs or args).graph.units]
    return [units[len(units) * stage // STAGES] for stage in range(1, STAGES)]


def _difference(expected: Tensor | None, found: Tensor | None) -> float:
    if expected is None or found is None:
        return 0.0 if expected is found else 1.0
    return float((expected - found).norm() / expected.norm().clamp_min(1e-6))
