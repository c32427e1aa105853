# SPDX-License-Identifier: Apache-2.0
"""Search for a plan of tensor parallelism: which modules of a model are split, and how.

Products that feed each other are found in one forward pass (`data_flow`). For each pair, some
splits are tried (`hypotheses`) on a copy of the block around them, and the first that is proved
(`proof`) is taken. Blocks that are alike are proved once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.tensor_parallel import hypotheses, refusal_kinds
from smdist.modelparallel.torch.tensor_parallel.attention_hypotheses import (
    attention,
    whole_attention,
)
from smdist.modelparallel.torch.tensor_parallel.block_numbers import undivided_heads
from smdist.modelparallel.torch.tensor_parallel.block_proofs import BlockProofs
from smdist.modelparallel.torch.tensor_parallel.data_flow import Flow
from smdist.modelparallel.torch.tensor_parallel.expert_hypotheses import experts, is_stack
from smdist.modelparallel.torch.tensor_parallel.marks import chosen
from smdist.modelparallel.torch.tensor_parallel.module_names import (
    are_siblings,
    around,
    joined,
    within,
)
from smdist.modelparallel.torch.tensor_parallel.parallel_styles import check_styles
from smdist.modelparallel.torch.tensor_parallel.proof import Refutation
from smdist.modelparallel.torch.tensor_parallel.sequence_slices import SequenceSlices
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import (
    ModuleSplit,
    Region,
    TensorPlan,
    Whole,
)
from smdist.modelparallel.torch.tensor_splits import Role
from smdist.modelparallel.torch.tensor_splits.split_attention import is_attention
from smdist.modelparallel.torch.tensor_splits.split_modules import is_product, is_table

# Smallest quotient of rows and columns of a table that is split, and of outputs and inputs of a
# product that is split alone.
_ROWS_PER_COLUMN: Final = 4


def find_plan(
    model: nn.Module,
    flow: Flow,
    degree: int,
    *,
    sequence_parallel: bool = False,
    on_accelerator: bool = False,
) -> TensorPlan:
    """Return the plan of tensor parallelism for a model, which stays unchanged.

    Args:
        model: The whole model, also on the meta device.
        flow: Flow of values between its products.
        degree: Number of ranks over which tensors are split.
        sequence_parallel: True to split sequences after these regions, where it is proved.
        on_accelerator: True if the model will run on an accelerator.

    Raises:
        OptionError: No module of the model can be split, or one not in its style.
    """
    slices = SequenceSlices(model, degree) if sequence_parallel else None
    proofs = BlockProofs(model, flow, degree, slices, on_accelerator=on_accelerator)
    search = _LayoutSearch(
        model=model, flow=flow, degree=degree, proofs=proofs, sequence_parallel=sequence_parallel,
        on_accelerator=on_accelerator,
    )  # fmt: skip
    search.pairs()
    search.attentions()
    search.experts()
    search.vocabulary()
    search.heads()
    plan = search.plan()
    check_styles(model, plan)
    if not plan.regions:
        reasons = "; ".join(f"{each.module}: {each.text}" for each in plan.whole[:3])
        raise OptionError(
            f"tensor_parallel_degree is {degree}, and no module of {plan.model} can be split",
            reasons or "it has no linear layers that feed each other, and no large embedding",
            "Leave tensor_parallel_degree out, or choose one that divides heads and widths",
            about="tensor_parallel_degree",
            kind="no_split",
        )
    return plan


@dataclass(slots=True, kw_only=True)
class _LayoutSearch:
    """State of the search for one model.

    Attributes:
        model, flow, degree, sequence_parallel, on_accelerator: As in `find_plan`.
        regions: Proved splits so far.
        roles: Roles of the modules in them, by name.
        reasons: Reasons why modules stay whole, by name.
        proofs: Proofs of splits of blocks.
    """

    model: nn.Module
    flow: Flow
    degree: int
    proofs: BlockProofs
    sequence_parallel: bool = False
    on_accelerator: bool = False
    regions: list[Region] = field(default_factory=list)
    roles: dict[str, Role] = field(default_factory=dict)
    reasons: dict[str, Whole] = field(default_factory=dict)

    def pairs(self) -> None:
        """Split products that feed each other, in the order in which they are called."""
        wanted, own = chosen(self.model), _plan_of_model(self.model)
        for row in self.flow.order:
            columns = self.flow.sources.get(row, ())
            names = (*columns, row)
            if not columns or row in columns or any(name in self.roles for name in names):
                continue
            if self.flow.tables.get(row) and not are_siblings(names):
                continue  # a residual connection from the first table, and no bias of attention
            if not all(wanted[name] for name in names):
                self._keep(names, refusal_kinds.BY_HAND, "the script keeps it whole")
                continue
            self._pair(columns, row, "model" if all(name in own for name in names) else "found")

    def _pair(self, columns: tuple[str, ...], row: str, origin: str) -> None:
        block = around((*columns, row))
        feeds = {
            name: tuple(each for each in self.flow.sources.get(name, ()) if each in columns)
            for name in columns
        }
        reason = self._undivided(feeds, row) or self._shared((*columns, row))
        if reason is not None:
            self._keep((*columns, row), *reason)
            return
        inner = {
            within(name, block): tuple(within(each, block) for each in before)
            for name, before in feeds.items()
        }
        found = self._proved_pair(block, inner, within(row, block), origin)
        if isinstance(found, Refutation):
            kind, text = found.kind, found.text
            heads = undivided_heads(self.model.get_submodule(block), self.degree)
            if heads is not None and kind == refusal_kinds.UNPROVED:
                kind = refusal_kinds.INDIVISIBLE
                text = f"its {heads[0]}, {heads[1]}, is not divisible by {self.degree}"
            self._keep((*columns, row), kind, text)
        else:
            self._take(found, block)
            for name in columns:
                self.reasons.pop(name, None)
            text = "each rank needs its whole output in a split region"
            self._keep(columns, refusal_kinds.REPLICATED, text)

    def _proved_pair(
        self, block: str, feeds: dict[str, tuple[str, ...]], row: str, origin: str
    ) -> Region | Refutation:
        module = self.model.get_submodule(block)
        tries = hypotheses.pairs(module, feeds, row, self.degree, origin)
        return self.proofs.of(block, tries, (tuple(feeds.items()), row))

    def experts(self) -> None:
        """Split the hidden width of each expert, in modules of stacked experts."""
        wanted = chosen(self.model)
        for name, module in self.model.named_modules():
            if name not in self.flow.calls or not is_stack(module) or name in self.roles:
                continue
            if not wanted[name]:
                self._keep([name], refusal_kinds.BY_HAND, "the script keeps it whole")
            elif (shared := self._shared((name,))) is not None:
                self._keep([name], *shared)
            else:
                found = self.proofs.of(name, experts(module, self.degree))
                if isinstance(found, Refutation):
                    self._keep([name], found.kind, found.text)
                else:
                    self._take(found, name)

    def attentions(self) -> None:
        """Split attention modules of torch by heads."""
        wanted = chosen(self.model)
        for name, module in self.model.named_modules():
            if name not in self.flow.calls or not is_attention(module):
                continue
            assert isinstance(module, nn.MultiheadAttention)
            names = [name, joined(name, "out_proj")]
            reason = whole_attention(module, self.degree, on_accelerator=self.on_accelerator)
            reason = reason or self._shared(names[:1], names)
            if not all(wanted[each] for each in names):
                reason = refusal_kinds.BY_HAND, "the script keeps it whole"
            if reason is not None:
                self._keep(names, *reason)
                continue
            found = self.proofs.of(name, [attention(module)])
            if isinstance(found, Refutation):
                self._keep(names, found.kind, found.text)
            else:
                self._take(found, name)

    def vocabulary(self) -> None:
        """Split large embeddings by rows, and products that share their weights."""
        wanted = chosen(self.model)
        for name in self.flow.order:
            module = self.model.get_submodule(name)
            if not is_table(module) or name in self.roles:
                continue
            assert isinstance(module, nn.Embedding)
            users = self._users(module.weight)
            if not all(wanted[each] for each in users):
                self._keep(users, refusal_kinds.BY_HAND, "the script keeps it whole")
            elif module.num_embeddings % self.degree:
                text = f"its {module.num_embeddings} rows are not divisible by {self.degree}"
                self._keep(users, refusal_kinds.INDIVISIBLE, text)
            elif len(users) == 1 and module.num_embeddings < _ROWS_PER_COLUMN * (
                module.embedding_dim
            ):
                self._keep(users, refusal_kinds.SMALL, "it has few rows, so a split saves little")
            else:
                self._vocabulary(users)

    def _vocabulary(self, users: tuple[str, ...]) -> None:
        """Split an embedding, and the products that share its weight, by rows."""
        for name in users:
            module = self.model.get_submodule(name)
            called = name in self.flow.order
            if not called or name in self.roles or not (is_table(module) or is_product(module)):
                text = f"its weight is shared with {name!r}, which cannot be split by rows"
                self._keep(users, refusal_kinds.SHARED, text)
                return
        splits: list[tuple[str, ModuleSplit]] = []
        whole: Region | None = None
        for name in users:
            module = self.model.get_submodule(name)
            split = (
                hypotheses.table(module, "")
                if is_table(module)
                else hypotheses.column(module, "", Role.JOINED)
            )
            region = Region(block="", modules=(split,))
            found = self.proofs.first(module, self.flow.calls[name], [region])
            if isinstance(found, Refutation):
                self._keep(users, found.kind, found.text)
                return
            whole = found if split.role is Role.VOCABULARY else whole
            splits.append((name, split))
        modules = tuple(replace(split, name=name) for name, split in splits)
        assert whole is not None
        self._take(replace(whole, modules=modules), "")

    def heads(self) -> None:
        """Split products of many outputs that feed no other product, such as scores of words."""
        wanted = chosen(self.model)
        feeding = {name for sources in self.flow.sources.values() for name in sources}
        for name in self.flow.order:
            module = self.model.get_submodule(name)
            reason = self.reasons.get(name)
            is_kept = reason is not None and reason.kind != refusal_kinds.UNPROVED
            if not is_product(module) or is_kept or name in {*self.roles, *feeding}:
                continue
            inputs, outputs = hypotheses.widths(module)
            if outputs < _ROWS_PER_COLUMN * inputs:
                continue
            if not wanted[name]:
                self._keep([name], refusal_kinds.BY_HAND, "the script keeps it whole")
            elif outputs % self.degree:
                text = f"its {outputs} columns are not divisible by {self.degree}"
                self._keep([name], refusal_kinds.INDIVISIBLE, text)
            elif (shared := self._shared((name,))) is not None:
                self._keep([name], *shared)
            else:
                self._head(name, module)

    def _head(self, name: str, module: nn.Module) -> None:
        region = Region(block="", modules=(hypotheses.column(module, "", Role.JOINED),))
        found = self.proofs.first(module, self.flow.calls[name], [region])
        if isinstance(found, Refutation):
            self._keep([name], found.kind, found.text)
        else:
            self._take(found, name)

    def plan(self) -> TensorPlan:
        """Return the plan, with a reason for each product and embedding that stays whole."""
        split = {
            id(self.model.get_submodule(each.name)._parameters[key])
            for region in self.regions
            for each in region.modules
            for key in each.dims
        }
        sizes = {id(p): p.numel() for p in self.model.parameters()}
        return TensorPlan(
            model=type(self.model).__name__,
            degree=self.degree,
            regions=tuple(self.regions),
            whole=tuple(self._whole()),
            num_elements=sum(sizes.values()),
            num_split=sum(size for key, size in sizes.items() if key in split),
            sequence_parallel=self.sequence_parallel,
        )

    def _whole(self) -> Iterator[Whole]:
        for name, module in self.model.named_modules():
            is_layer = isinstance(module, nn.Embedding) or is_product(module)
            is_known = is_layer or name in self.reasons
            if not is_known or name in self.roles:
                continue
            if name in self.reasons:
                yield self.reasons[name]
            elif name not in self.flow.order:
                text = "the forward pass does not call it as a module"
                yield Whole(module=name, kind=refusal_kinds.NOT_CALLED, text=text)
            else:
                text = "no other product is its partner in a split"
                yield Whole(module=name, kind=refusal_kinds.NO_PAIR, text=text)

    def _undivided(self, feeds: Mapping[str, tuple[str, ...]], row: str) -> tuple[str, str] | None:
        columns = () if any(feeds.values()) else feeds  # else each layout has other columns
        counts = {name: hypotheses.widths(self.model.get_submodule(name))[1] for name in columns}
        counts[row] = hypotheses.widths(self.model.get_submodule(row))[0]
        for name, count in counts.items():
            if count % self.degree:
                what = "rows" if name == row else "columns"
                text = f"the {count} {what} of {name!r} are not divisible by {self.degree}"
                return refusal_kinds.INDIVISIBLE, text
        return None

    def _shared(self, names: Sequence[str], inside: Collection[str] = ()) -> tuple[str, str] | None:
        """Return a reason if a parameter of these modules is a parameter of another one, too.

        Args:
            names: Names of the modules.
            inside: Names of other modules that do not count.
        """
        for name in names:
            for parameter in self.model.get_submodule(name).parameters():
                others = [
                    each for each in self._users(parameter) if each != name and each not in inside
                ]
                if others:
                    text = f"its weight is shared with {others[0]!r}"
                    return refusal_kinds.SHARED, text
        return None

    def _users(self, parameter: Any) -> tuple[str, ...]:
        """Return the names of the modules that have a parameter, in the model's order."""
        return tuple(
            name
            for name, module in self.model.named_modules()
            if any(each is parameter for each in module._parameters.values())
        )

    def _take(self, region: Region, block: str) -> None:
        """Add a proved split to the plan, with the names that its modules have in the model."""
        named = replace(
            region,
            block=block,
            modules=tuple(replace(m, name=joined(block, m.name)) for m in region.modules),
            attributes=tuple(
                replace(each, module=joined(block, each.module)) for each in region.attributes
            ),
            dropouts=tuple(
                replace(each, name=joined(block, each.name)) for each in region.dropouts
            ),
        )
        self.regions.append(named)
        self.roles.update({each.name: each.role for each in named.modules if each.dims})

    def _keep(self, names: Iterable[str], kind: str, text: str) -> None:
        for name in names:
            if name not in self.roles:
                self.reasons.setdefault(name, Whole(module=name, kind=kind, text=text))


def _plan_of_model(model: nn.Module) -> set[str]:
    """Return the names of modules that the model's own plan, as in transformers, splits."""
    plans: Mapping[str, str] = {}
    for name in ("_tp_plan", "base_model_tp_plan"):
        own = getattr(model, name, None) or getattr(getattr(model, "config", None), name, None)
        plans = {**plans, **(own if isinstance(own, Mapping) else {})}
    return {
        name
        for name, _ in model.named_modules()
        if any(fnmatchcase(name, f"*{pattern}") for pattern in plans)
    }
