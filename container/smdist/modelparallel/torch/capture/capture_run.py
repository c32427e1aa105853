# SPDX-License-Identifier: Apache-2.0
"""One run of a model on fake tensors, which records its program.

After the run, function caches (`functools.lru_cache`) that contain fake tensors are cleared. Such a
cache is common on a function that makes a mask. It would return a fake tensor to the next real run.
"""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Iterable, Iterator
from itertools import compress, repeat
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.capture.argument_objects import carried
from smdist.modelparallel.torch.capture.capture_errors import CaptureError
from smdist.modelparallel.torch.capture.external_tensors import ExternalTensors
from smdist.modelparallel.torch.capture.fake_model import FakeModel, check_plain, on_fakes
from smdist.modelparallel.torch.capture.module_snapshot import snapshots, uncompiled, untouched
from smdist.modelparallel.torch.capture.program_writer import ProgramWriter
from smdist.modelparallel.torch.capture.recorder import CallRecorder
from smdist.modelparallel.torch.capture.recorder_hooks import recording
from smdist.modelparallel.torch.capture.shape_probe import Probe
from smdist.modelparallel.torch.program.program import Argument, Call, Constant, Program, Ref
from smdist.modelparallel.torch.program.pytree import Form, flatten, paths, unflatten
from smdist.modelparallel.torch.program.tracing_flag import tracing

_DEPTH = 5


def clear_caches(made: Iterable[ReferenceType[Tensor]]) -> None:
    """Clear every `functools.lru_cache` of this process that contains a fake tensor.

    Args:
        made: References to the fake tensors of a run. Tensors that no longer exist are ignored.
    """
    alive = {id(tensor) for tensor in (reference() for reference in made) if tensor is not None}
    if not alive:
        return
    objects = gc.get_objects()  # a million: a loop in Python would take a tenth of a second
    is_cache = map(operator.is_, map(type, objects), repeat(functools._lru_cache_wrapper))
    for cache in compress(objects, is_cache):
        if cache.cache_info().currsize and _holds(cache, alive, _DEPTH):
            cache.cache_clear()


def _holds(item: Any, alive: set[int], depth: int) -> bool:
    for inside in gc.get_referents(item):
        if id(inside) in alive:
            return True
        is_part = isinstance(inside, (dict, list, tuple)) or "lru" in type(inside).__name__
        if depth and is_part and _holds(inside, alive, depth - 1):
            return True
    return False


def run_once(model: nn.Module, arguments: tuple[Any, Any], units: set[str]) -> Program:
    """Run a model's forward pass on fake tensors, and return the recorded program.

    No fake tensor is left in a function cache afterwards.

    Args:
        model: The model.
        arguments: Positional arguments and keyword arguments.
        units: Names of the modules to record as one call each, without the operations inside.

    Raises:
        Escalation: A module cannot be recorded and must become a unit.
        CaptureError: The model's forward pass cannot be recorded.
    """
    made: list[ReferenceType[Tensor]] = []
    try:
        return _run(model, arguments, units, made)
    finally:
        clear_caches(made)


def _run(
    model: nn.Module,
    arguments: tuple[Any, Any],
    units: set[str],
    made: list[ReferenceType[Tensor]],
) -> Program:
    leaves, form = flatten(arguments)
    with on_fakes(model, _device(leaves, model), made) as fake, untouched(), uncompiled():
        inputs = [_input(fake, leaf, _device(leaves, model)) for leaf in leaves]
        pairs = zip(inputs, leaves, strict=True)
        known = {id(made): real for made, real in pairs if isinstance(made, Tensor)}
        kept = [model.get_submodule(name) for name in units]
        writer = ProgramWriter(fake)
        recorder = CallRecorder(
            writer,
            units={id(unit) for unit in kept},
            before={id(unit): snapshots(unit.modules()) for unit in kept},
            names={id(module): name for name, module in model.named_modules()},
            probe=Probe(fake, known),
            external=ExternalTensors(fake),
        )
        sources = tuple(_publish(writer, inputs, form))
        output = _call(model, recorder, fake, unflatten(form, inputs))
        if writer.pending is not None:
            raise writer.pending
        outputs, output_form = recorder.result(output)
        return Program(
            calls=_wanted(writer.rng_calls.add_to(writer.calls), outputs),
            input_form=form,
            inputs=sources,
            output_form=output_form,
            outputs=outputs,
            base=writer.base,
            facts=writer.origins.facts,
            aliases=writer.origins.aliases,
            rng=writer.rng_calls.whole_pass,
        )


def _call(
    model: nn.Module, recorder: CallRecorder, fake: FakeModel, arguments: tuple[Any, Any]
) -> Any:
    args, kwargs = arguments
    with fake.mode, recording(recorder, model), tracing():
        return model(*args, **kwargs)


def _device(leaves: list[Any], model: nn.Module) -> torch.device:
    """Return the device that the run uses in place of the meta device.

    The result is the device of the first input that is not on the meta device; if there is none, of
    the first such parameter; if there is none either, the CPU.

    Args:
        leaves: Inputs of the model, taken out of nested containers.
        model: The model.
    """
    found = (leaf for leaf in [*leaves, *model.parameters()] if isinstance(leaf, Tensor))
    real = (tensor.device for tensor in found if not tensor.is_meta)
    return next(real, torch.device("cpu"))


def _input(fake: FakeModel, leaf: Any, meta: torch.device) -> Any:
    if not isinstance(leaf, Tensor):
        if carried(leaf):
            raise CaptureError(
                f"an input of the model is a {type(leaf).__name__} that contains a {carried(leaf)}",
                "inputs have to be tensors, plain data, or lists, dicts and dataclasses of these",
                "Pass the tensors that it contains",
                kind="object_with_tensors",
            )
        return leaf
    check_plain(leaf, "an input of the model")
    device = meta if leaf.is_meta else leaf.device
    if leaf.layout is not torch.strided:
        return fake.mode.from_tensor(leaf)
    with fake.mode:
        made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
        return made.requires_grad_(leaf.requires_grad)


def _publish(writer: ProgramWriter, inputs: list[Any], form: Form) -> Iterator[Argument]:
    names: dict[int, Argument] = {}
    for path, leaf in zip(paths(form), inputs, strict=True):
        if not isinstance(leaf, Tensor):
            yield Constant(leaf)
            continue
        name = f"input:{path.split('.', 1)[1]}"
        names[id(leaf)] = writer.origins.publish(leaf, name)
        yield names[id(leaf)]


def _wanted(calls: list[Call], outputs: tuple[Argument, ...]) -> tuple[Call, ...]:
    """Return the calls of a program that are needed.

    A call of a function is not needed if its result is never read and it has no side effects.

    Args:
        calls: All recorded calls.
        outputs: The model's output; a value in it counts as read.
    """
    read = {output.value for output in outputs if isinstance(output, Ref)}
    kept: list[Call] = []
    for call in reversed(calls):
        if call.is_unit or call.changed or call.is_random or read & set(call.writes) or _acts(call):
            kept.append(call)
            read |= set(call.reads)
    return tuple(reversed(kept))


def _acts(call: Call) -> bool:
    return getattr(call.function, "__name__", "").endswith("_")
