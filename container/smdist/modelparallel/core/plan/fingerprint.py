# SPDX-License-Identifier: Apache-2.0
"""Fingerprint of a plan's model, which shows whether and how another model differs.

A plan stores one short line for each unit (undivided module), so that users can read the file. The
line has the unit's class, the number of elements of its parameters, and a digest of their names,
shapes and dtypes. The shapes of values between modules have a separate digest. With inputs of other
shapes a plan still works, but its predicted times and memory are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from smdist.modelparallel.core.graph import Graph, Node, NodeKind

_DIGITS: Final = 12  # 48 bits: enough against accidental collisions


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPrint:
    """Fingerprint of one module: class, number of parameter elements, digest of the parameters."""

    type: str
    num_elements: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Fingerprint of a model.

    Attributes:
        units: Fingerprint of each unit (undivided module), by name.
        others: Digest of the parameters that no unit uses.
        shapes: Digest of the shapes and dtypes of all values between nodes.
    """

    units: Mapping[str, UnitPrint]
    others: str
    shapes: str

    @classmethod
    def of(cls, graph: Graph) -> Fingerprint:
        """Return the fingerprint of a model, from its graph."""
        used = {name for unit in graph.units for name in unit.parameters}
        others = [each.name for each in graph.parameters if each.name not in used]
        values = (value for node in graph.nodes for value in node.writes)
        return cls(
            units={unit.name: _unit(graph, unit) for unit in graph.units},
            others=_parameters(graph, others),
            shapes=digest(f"{value.dtype}{list(value.shape)}" for value in values),
        )

    def differences(self, graph: Graph) -> Iterator[str]:
        """Yield a text for each difference between a model and this fingerprint.

        Modules that only one of the two has are not reported.

        Args:
            graph: Graph of the model.
        """
        now = Fingerprint.of(graph)
        for name, before in self.units.items():
            if name in now.units and now.units[name] != before:
                yield _difference(name, before, now.units[name])
        if self.others != now.others:
            yield "other parameters than those of its modules differ"


def digest(parts: Iterator[str] | list[str]) -> str:
    """Return 12 hexadecimal digits that identify a list of strings, in this order."""
    return sha256("\n".join(parts).encode()).hexdigest()[:_DIGITS]


def _unit(graph: Graph, unit: Node) -> UnitPrint:
    assert unit.kind is NodeKind.UNIT
    elements = sum(graph.parameter[name].num_elements for name in unit.parameters)
    parameters = _parameters(graph, list(unit.parameters))
    return UnitPrint(type=unit.type, num_elements=elements, digest=parameters)


def _parameters(graph: Graph, names: list[str]) -> str:
    found = (graph.parameter[name] for name in sorted(names))
    return digest(
        f"{each.name} {each.dtype}{list(each.shape)} {each.is_trained} {sorted(each.aliases)}"
        for each in found
    )


def _difference(name: str, before: UnitPrint, now: UnitPrint) -> str:
    if before.type != now.type:
        return f"{name!r} is of class {now.type}, and was of class {before.type}"
    if before.num_elements != now.num_elements:
        was = f"{before.num_elements:,}"
        return f"{name!r} has {now.num_elements:,} parameter elements, and had {was}"
    return f"{name!r} has parameters with other names, shapes, dtypes or ties"
