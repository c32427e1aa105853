# SPDX-License-Identifier: Apache-2.0
"""Plan of tensor parallelism: which modules are split, how, and why the others stay whole.

A plan is plain data. One rank finds it, and every rank applies it to its own copy of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from smdist.modelparallel.torch.tensor_splits import PartValues, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSplit:
    """Split of one module of a region.

    A module whose parameters have different sections has several of these.

    Attributes:
        name: Name of the module in the model.
        role: Part that the module has in its region.
        dims: Dimension along which each split parameter is split, by the parameter's name in the
            module. Other parameters are whole on every rank.
        sections: Lengths of the sections of this dimension; see `TensorSplit`.
        values: Values that pass between the module and what is outside of the region.
    """

    name: str
    role: Role
    dims: Mapping[str, int] = field(default_factory=dict)
    sections: tuple[int, ...] = ()
    values: PartValues = field(default_factory=PartValues)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """Number in an attribute of a module, such as its number of heads, and this number on a rank.

    Attributes:
        module: Name of the module in the model.
        name: Name of the attribute.
        whole: Number in the whole model, or numbers, such as the lengths of sections.
        part: Number or numbers on each rank.
    """

    module: str
    name: str
    whole: int | tuple[int, ...]
    part: int | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutSplit:
    """Dropout inside a region, which draws the numbers of the whole tensor.

    Attributes:
        name: Name of the module in the model.
        dim: Dimension along which its input is split.
    """

    name: str
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsliced:
    """Reason why the sum over ranks at the end of a region is not split by positions.

    Attributes:
        kind: Kind of the reason: "no_sequence", "no_sum", "compiled", "unproved" or "dropout".
        text: Sentence for users.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Modules that are split together: the values between them are split over ranks.

    Attributes:
        block: Name of the smallest module around them, on a copy of which the split was proved.
        modules: Modules that are split.
        attributes: Attributes that change with the split.
        dropouts: Dropouts whose input is a part of a tensor.
        origin: "model" if the model's own plan has these splits, else "found".
        is_sliced: True if its sum over ranks is split by positions of the sequence.
        unsliced: Reason, for users, why it is not, although sequence parallelism is wanted.
    """

    block: str
    modules: tuple[ModuleSplit, ...]
    attributes: tuple[Attribute, ...] = ()
    dropouts: tuple[DropoutSplit, ...] = ()
    origin: str = "found"
    is_sliced: bool = False
    unsliced: Unsliced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Module that every rank has whole, and the reason.

    Attributes:
        module: Name of the module in the model.
        kind: Kind of the reason, such as "indivisible".
        text: Sentence for users.
    """

    module: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """Plan of tensor parallelism for one model.

    Attributes:
        model: Class of the model.
        degree: Number of ranks over which tensors are split.
        regions: Modules that are split, in the order in which they were called.
        whole: Products and embeddings that stay whole, with the reasons.
        num_elements: Number of elements of all parameters of the model.
        num_split: Number of elements of the parameters that are split.
        sequence_parallel: True if sequences between regions are split where they can be.
    """

    model: str
    degree: int
    regions: tuple[Region, ...] = field(repr=False)
    whole: tuple[Whole, ...] = field(repr=False)
    num_elements: int
    num_split: int
    sequence_parallel: bool = False

    @property
    def modules(self) -> Iterator[ModuleSplit]:
        """Splits of all modules, in the order of regions."""
        return (each for region in self.regions for each in region.modules)

    def summary(self) -> str:
        """Return some lines of text for users: what is split, and what stays whole and why."""
        share = 100 * self.num_split / max(self.num_elements, 1)
        count = len({each.name for each in self.modules if each.dims})
        lines = [
            f"tensor parallelism: {count} modules of {self.model}, with {share:.0f} % of its"
            f" parameters, are split over {self.degree} ranks"
        ]
        reasons: dict[tuple[str, str], list[str]] = {}
        for each in self.whole:
            reasons.setdefault((each.kind, each.text), []).append(each.module)
        for (_, text), names in reasons.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"  whole: {names[0]}{more}: {text}")
        return "\n".join([*lines, *self._sequence_lines()]) + "\n"

    def _sequence_lines(self) -> Iterator[str]:
        """Yield lines of the summary that say where sequences are split, and where not and why."""
        if not self.sequence_parallel:
            return
        count = sum(region.is_sliced for region in self.regions)
        yield f"sequence parallelism: after {count} of {len(self.regions)} split regions"
        reasons: dict[str, list[str]] = {}
        for region in self.regions:
            if region.unsliced is not None:
                name = next(each.name for each in reversed(region.modules) if each.dims)
                reasons.setdefault(region.unsliced.text, []).append(name)
        for text, names in reasons.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"  whole sequence: {names[0]}{more}: {text}"
