# SPDX-License-Identifier: Apache-2.0
"""Parameters that are frozen, or trained again, after the cut: who has one speaks for it.

After the cut, `model.named_parameters()` has those of this rank. A loop over it that freezes some
leaves every rank with another idea of the whole model, and captures go by the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.torch.mail.post import gather
from smdist.modelparallel.torch.parallel.cut import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a rank of a pipeline says.

    Attributes:
        frozen: Names of the parameters that are, as it sees the model.
        held: Names of those that it has.
        agreed: What was frozen in the last step.
    """

    frozen: frozenset[str]
    held: frozenset[str]
    agreed: frozenset[str]


def settle(split: Split, axis: Axis) -> bool:
    """Take over what ranks have frozen, or train again, of what is theirs; collective over `axis`.

    Returns:
        Whether a rank of any pipeline has: on all ranks of `axis` the same. What ranks still
        disagree about is for the next look at the model to find.
    """
    groups = split.groups
    answers = gather(_told(split), groups.of(axis))
    told = dict(zip(groups.members(axis), answers, strict=True))
    pipelines = [
        _settled([told[rank] for rank in pipeline])
        for pipeline in groups.layout.all_members(Axis.PP)
        if pipeline[0] in told
    ]
    for name, is_frozen in _settled([told[r] for r in groups.members(Axis.PP)]).items():
        for alias in split.aliases(name):
            split.model.get_parameter(alias).requires_grad_(not is_frozen)
    return any(pipelines)


def _told(split: Split) -> Told:
    own = {id(each) for stage in split.stages.values() for each in stage.parameters()}
    names = (name for name, _ in split.skeleton.named_parameters())
    held = [
        name
        for name in names
        if any(id(split.model.get_parameter(alias)) in own for alias in split.aliases(name))
    ]
    return Told(
        frozen=frozenset(split.frozen()), held=frozenset(held), agreed=frozenset(split.agreed)
    )


def _settled(ranks: list[Told]) -> dict[str, bool]:
    """Whether those are frozen that all who have them have changed since the last step."""
    agreed = ranks[0].agreed
    changed: dict[str, bool] = {}
    for name in frozenset().union(*(each.held for each in ranks)):
        views = {name in each.frozen for each in ranks if name in each.held}
        if views == {name not in agreed}:
            changed[name] = name not in agreed
    return changed
