# SPDX-License-Identifier: Apache-2.0
"""The graph of a program: what planners read, without PyTorch's types."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

from smdist.modelparallel.core.graph import Graph, Kind, Node, Parameter, Value
from smdist.modelparallel.torch.program import Argument, Call, Program, Ref, TensorFacts


def build_graph(model: nn.Module, program: Program) -> Graph:
    """The program as nodes and values."""
    parameters = _parameters(model)
    names = {alias: p.name for p in parameters for alias in (p.name, *p.aliases)}
    inputs = tuple(
        Node(
            name=source.value,
            kind=Kind.INPUT,
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
        kind=Kind.UNIT if call.is_unit else Kind.GLUE,
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
