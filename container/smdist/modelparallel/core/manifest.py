# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, and whether it is of the model that it is loaded into.

Everything has the name that it has in the whole model, so nothing here depends on stages. What is
tied is written once, under its first name; readers may know it by any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from sagemaker_dist.errors import OptionError

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A parameter, a buffer or other state of a module.

    Attributes:
        name: Its first name in the model.
        aliases: Its other names.
        shape: Of the whole of it; None for what is no tensor.
        dtype: As PyTorch spells it, without a prefix.
    """

    name: str
    aliases: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters that an optimizer treats alike: their first names, and its options for them."""

    names: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What an optimizer holds.

    Attributes:
        kind: Its class.
        options: Names of the options that each group has.
        groups: In its order.
        keys: What it keeps for a parameter, by first name; those it never stepped have none.
    """

    kind: str
    options: tuple[str, ...]
    groups: tuple[Group, ...]
    keys: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class Manifest:
    """What a checkpoint holds.

    Attributes:
        model: Class of the model: for people.
        entries: In the model's order.
        state: The optimizer's; None without one.
        layout: Who wrote it: ranks, degrees and strategy.
        run: Seed and number of the step, where random numbers follow from them.
    """

    model: str
    entries: tuple[Entry, ...]
    state: State | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def named(self) -> Mapping[str, Entry]:
        """Entries by each of their names."""
        return {name: each for each in self.entries for name in (each.name, *each.aliases)}

    def found_for(self, entry: Entry) -> Entry | None:
        """What stands here for an entry of another model, by any name that both know."""
        names = (entry.name, *entry.aliases)
        return next((self.named[name] for name in names if name in self.named), None)

    def document(self) -> dict[str, Any]:
        """Spell it with plain types: whoever reads it may have another version of this class."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Manifest:
        """Read it back."""
        entries = tuple(Entry(**each) for each in document["entries"])
        state = document["state"]
        if state is not None:
            groups = tuple(Group(**each) for each in state["groups"])
            state = State(**{**state, "groups": groups})
        return cls(**{**document, "entries": entries, "state": state})


def model_faults(saved: Manifest, here: Manifest, *, strict: bool) -> Iterator[OptionError]:
    """What keeps a checkpoint from being loaded into a model.

    Args:
        saved: The checkpoint.
        here: The model.
        strict: Whether both must have the same names.
    """
    other = f"of {saved.model}" + f", the model is {here.model}" * (saved.model != here.model)
    whose = f"the checkpoint is {other}"
    missing = [each.name for each in here.entries if saved.found_for(each) is None]
    surplus = [each.name for each in saved.entries if here.found_for(each) is None]
    mend = "Load it into the model that it is of, or pass strict=False to load what both have"
    if strict and missing:
        yield OptionError(f"{_listed(missing)}: the checkpoint has no such values", whose, mend)
    if strict and surplus:
        yield OptionError(f"{_listed(surplus)}: the model has nothing of that name", whose, mend)
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


def state_faults(saved: Manifest, here: State) -> Iterator[OptionError]:
    """What keeps the state of an optimizer from being loaded into another.

    Args:
        saved: The checkpoint.
        here: The optimizer, with the names that its parameters have in the checkpoint.
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
    saved: State, group: Group, number: int, num_groups: int
) -> Mapping[str, Any] | None:
    """The options that a group gets: those that its parameters had, wherever they stood.

    A group without parameters has those of the group of its number, if there are as many.
    Returns None where parameters of one group had different ones.
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
