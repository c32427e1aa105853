# SPDX-License-Identifier: Apache-2.0
"""Conversion of a recorded program to the planner's graph, which contains no objects of PyTorch.

The function `crowded` finds modules that should not be split. A value is live from the call that
makes it until the last call that reads it. If a model is split at some place, every value that is
live there is sent to the next stage. Inside a block with a skip connection two values are live, and
after the block only one value. So a block is not split, but a model may be split between blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import nn

from smdist.modelparallel.core.graph import Graph, Node, NodeKind, Parameter, Value
from smdist.modelparallel.torch.program.program import Argument, Call, Program, Ref, TensorFacts


def build_graph(model: nn.Module, program: Program) -> Graph:
    """Return the planner's graph of a program.

    The graph has a node for each input and each call of the program, and the model's parameters.
    """
    parameters = _parameters(model)
    names = {alias: p.name for p in parameters for alias in (p.name, *p.aliases)}
    inputs = tuple(
        Node(
            name=source.value,
            kind=NodeKind.INPUT,
            module="",
            writes=(_value(source.value, program.facts[source.value]),),
        )
        for source in program.inputs
        if isinstance(source, Ref)
    )
    calls = tuple(_node(model, call, program, names) for call in program.calls)
    return Graph(
        model=type(model).__name__,
        nodes=inputs + calls,
        outputs=_outputs(program.outputs),
        parameters=parameters,
    )


def _outputs(outputs: tuple[Argument, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(output.value for output in outputs if isinstance(output, Ref)))


def _node(model: nn.Module, call: Call, program: Program, names: Mapping[str, str]) -> Node:
    held = [names[name] for name in call.held if name in names]
    title = getattr(call.function, "__name__", "")
    if call.is_unit:
        unit = model.get_submodule(call.module)
        title = type(unit).__name__
        held += [names[f"{call.module}.{name}"] for name, _ in unit.named_parameters()]
    return Node(
        name=call.name,
        kind=NodeKind.UNIT if call.is_unit else NodeKind.GLUE,
        module=call.module,
        reads=call.reads,
        writes=tuple(_value(name, program.facts[name]) for name in call.writes),
        parameters=tuple(dict.fromkeys(held)),
        is_random=call.is_random,
        has_state=call.has_state,
        type=title,
    )


def _value(name: str, facts: TensorFacts) -> Value:
    return Value(
        name=name,
        shape=facts.shape,
        dtype=str(facts.dtype).removeprefix("torch."),
        num_bytes=math.prod(facts.shape) * facts.dtype.itemsize,
        has_gradient=facts.requires_grad,
    )


def _parameters(model: nn.Module) -> tuple[Parameter, ...]:
    aliases: dict[int, list[str]] = {}
    found: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
        found[id(parameter)] = parameter
    return tuple(_parameter(found[key], names) for key, names in aliases.items())


def _parameter(parameter: nn.Parameter, names: list[str]) -> Parameter:
    return Parameter(
        name=names[0],
        shape=tuple(parameter.shape),
        dtype=str(parameter.dtype).removeprefix("torch."),
        num_elements=parameter.numel(),
        num_bytes=parameter.numel() * parameter.element_size(),
        is_trained=parameter.requires_grad,
        aliases=tuple(names[1:]),
    )


def crowded(program: Program, opened: Iterable[str]) -> set[str]:
    """Return the names of modules that are expensive to split, since many values would be sent.

    Inside such a module more values are live than before and after it. A value is live from the
    call that makes it until the last call that reads it.

    Args:
        program: Program of the model.
        opened: Names of the modules to check.
    """
    under_way = _under_way(program)
    return {name for name in opened if _is_crowded(program, name, under_way)}


def _under_way(program: Program) -> list[int]:
    """Return, for each call, the number of floating-point tensors that are needed after the call.

    Only results of calls count, not inputs of the model. A tensor is needed if a later call reads
    it, or if it is part of the model's output.
    """
    last = {name: at for at, call in enumerate(program.calls) for name in call.reads}
    end = len(program.calls)
    last.update({o.value: end for o in program.outputs if isinstance(o, Ref)})
    first = {name: at for at, call in enumerate(program.calls) for name in call.writes}
    counts = [0] * len(program.calls)
    for name, at in first.items():
        if program.facts[name].dtype.is_floating_point:
            for between in range(at, last.get(name, at)):
                counts[between] += 1
    return counts


def _is_crowded(program: Program, name: str, under_way: list[int]) -> bool:
    inside = [
        at
        for at, call in enumerate(program.calls)
        if call.module == name or call.module.startswith(f"{name}.")
    ]
    if not inside:
        return False
    first, last = inside[0], inside[-1]
    around = max(under_way[first - 1] if first else 1, under_way[last], 1)
    units = [at for at in range(first, last) if program.calls[at].is_unit]
    return any(under_way[at] > around for at in units)
