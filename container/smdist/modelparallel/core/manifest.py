# SPDX-License-Identifier: Apache-2.0
"""Manifest of a checkpoint, and checks that the checkpoint fits a model and an optimizer.

Everything is stored under its name in the whole model, so a manifest does not depend on stages. A
tied parameter is stored once, under its first name, and can be read by any of its names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from sagemaker_dist.errors import OptionError

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """Entry for a parameter, a buffer or other state of a module.

    Attributes:
        name: First name in the model.
        aliases: Other names in the model.
        shape: Shape of the whole tensor; None if the value is not a tensor.
        dtype: PyTorch's name of the dtype, without a prefix.
    """

    name: str
    aliases: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameter group of an optimizer: first names of its parameters, and their common options."""

    names: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """State of an optimizer.

    Attributes:
        kind: Class of the optimizer.
        options: Names of the options that each group has.
        groups: Parameter groups in the optimizer's order.
        keys: Names of the state values of each parameter, by first name; a parameter without an
            optimizer step is absent.
    """

    kind: str
    options: tuple[str, ...]
    groups: tuple[Group, ...]
    keys: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class Manifest:
    """Contents of a checkpoint.

    Attributes:
        model: Class of the model, shown in reports.
        entries: Entries in the model's order.
        state: State of the optimizer; None if the checkpoint has none.
        layout: Layout of the ranks that wrote the checkpoint: size, degrees and strategy.
        run: Seed and number of the step, if random numbers follow from them.
    """

    model: str
    entries: tuple[ManifestEntry, ...]
    state: OptimizerState | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def named(self) -> Mapping[str, ManifestEntry]:
        """Entries by each of their names, aliases included."""
        return {name: each for each in self.entries for name in (each.name, *each.aliases)}

    def found_for(self, entry: ManifestEntry) -> ManifestEntry | None:
        """Return the entry with one of the names of another model's entry, or None."""
        names = (entry.name, *entry.aliases)
        return next((self.named[name] for name in names if name in self.named), None)

    def document(self) -> dict[str, Any]:
        """Return the manifest as plain types, which other versions of this class can read."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Manifest:
        """Return the manifest that `document` wrote."""
        entries = tuple(ManifestEntry(**each) for each in document["entries"])
        state = document["state"]
        if state is not None:
            groups = tuple(Group(**each) for each in state["groups"])
            state = OptimizerState(**{**state, "groups": groups})
        return cls(**{**document, "entries": entries, "state": state})


def model_faults(saved: Manifest, here: Manifest, *, strict: bool) -> Iterator[OptionError]:
    """Return the faults that prevent a checkpoint from being loaded into a model.

    Args:
        saved: Manifest of the checkpoint.
        here: Manifest of the model.
        strict: True if both must have the same names.
    """
    other = f"of {saved.model}" + f", the model is {here.model}" * (saved.model != here.model)
    whose = f"the checkpoint is {other}"
    missing = [each.name for each in here.entries if saved.found_for(each) is None]
    surplus = [each.name for each in saved.entries if here.found_for(each) is None]
    hint = "Load it into the model that it is of, or pass strict=False to load what both have"
    if strict and missing:
        yield OptionError(f"{_listed(missing)}: the checkpoint has no such values", whose, hint)
    if strict and surplus:
        yield OptionError(f"{_listed(surplus)}: the model has nothing of that name", whose, hint)
    pairs = [(each, saved.found_for(each)) for each in here.entries]
    wrong = [
        f"{each.name} is {_shape(each.shape)} here and {_shape(found.shape)} there"
        for each, found in pairs
        if found is not None and found.shape != each.shape
    ]
    if wrong:
        yield OptionError(_listed(wrong), whose, "Make the model with the sizes that were saved")
    if not strict and len(missing) == len(here.entries):
        yield OptionError("nothing of the checkpoint fits", whose, "Load it into its own model")


def state_faults(saved: Manifest, here: OptimizerState) -> Iterator[OptionError]:
    """Return the faults that prevent an optimizer from loading the state in a checkpoint.

    Args:
        saved: Manifest of the checkpoint.
        here: State of the optimizer, with the parameter names of the checkpoint.
    """
    skip = "pass load_optimizer=False"
    if saved.state is None:
        yield OptionError("the checkpoint has no optimizer", "none was saved", skip.capitalize())
        return
    if set(saved.state.options) != set(here.options):
        differing = sorted(set(saved.state.options) ^ set(here.options))
        yield OptionError(
            f"the checkpoint is of {saved.state.kind}, the optimizer is {here.kind}",
            f"only one of them has {_listed(differing)}",
            f"Use {saved.state.kind}, or {skip}",
        )
    known = {name for group in saved.state.groups for name in group.names}
    strange = [name for group in here.groups for name in group.names if name not in known]
    if strange:
        yield OptionError(
            f"{_listed(strange)}: not trained in the checkpoint",
            f"its {saved.state.kind} had no such parameters",
            f"Give the optimizer the parameters that were trained, or {skip}",
        )
    for number, group in enumerate(here.groups):
        if options_for(saved.state, group, number, len(here.groups)) is None and group.names:
            yield OptionError(
                f"group {number} of the optimizer has {_listed(group.names)}",
                "in the checkpoint these had different options",
                f"Group parameters as they were saved, or {skip}",
            )


def options_for(
    saved: OptimizerState, group: Group, number: int, num_groups: int
) -> Mapping[str, Any] | None:
    """Return the saved options for a group: those that its parameters had, in any group.

    A group without parameters gets the options of the saved group with the same number, if both
    optimizers have equally many groups. None is returned if parameters of the group were saved with
    different options.
    """
    sources = [each for each in saved.groups if set(each.names) & set(group.names)]
    if not group.names:
        return saved.groups[number].options if num_groups == len(saved.groups) else {}
    alike = bool(sources) and all(_same(each.options, sources[0].options) for each in sources)
    return sources[0].options if alike else None


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return repr(sorted(one.items())) == repr(sorted(other.items()))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else f"{tuple(shape)}"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
