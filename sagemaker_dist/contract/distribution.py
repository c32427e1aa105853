# SPDX-License-Identifier: Apache-2.0
"""What `distribution=` may be: a typed option, our dict form, or those of SageMaker's SDK.

    DataParallel(fusion_bytes=...)                            typed
    {"smdist": {"dataparallel": {"fusion_bytes": ...}}}       the same as a dict
    ModelParallel(microbatches=...)                           typed
    {"smdist": {"modelparallel": {"microbatches": ...}}}      the same as a dict
    {"torch_distributed": {"enabled": True}}                  SageMaker's, typed TorchDistributed()

Who starts the ranks follows from the image. With SageMaker's own, keys other
than ours go to SageMaker's SDK as they came. With ours, `in_our_image` says
what of them our launcher starts; the rest is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.opening import is_open
from sagemaker_dist.contract.options import DataParallel
from sagemaker_dist.contract.smp import smp_warnings
from sagemaker_dist.contract.spelling import (
    AWS,
    DATA,
    GROUPS,
    KINDS,
    MODEL,
    MPI_OPTIONS,
    OPTIONS,
    OURS,
    STOCK,
    STRATEGY_KEYS,
    spelling_faults,
)
from sagemaker_dist.contract.strategies import Strategy
from sagemaker_dist.contract.taking import taken_over
from sagemaker_dist.contract.wire import Options
from sagemaker_dist.errors import OptionError, raise_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A `distribution=` taken apart.

    Attributes:
        ours: What our runtime is asked of ranks and connections, or None.
        model: How it is asked to split the model; `ours` is its engine then. None for not.
        stock: The key of SageMaker's SDK by which our launcher is asked, or None.
        groups: The instance groups that our launcher starts ranks in, each by
            name or as an InstanceGroup; () for the only group there is.
        rest: The keys that go to SageMaker's SDK as they came.
        warnings: What of AWS's options means nothing in our image.
    """

    ours: DataParallel | None = None
    model: ModelParallel | None = None
    stock: str | None = None
    groups: tuple[Any, ...] = ()
    rest: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def options(self) -> Options | None:
        """All that our runtime is asked to do, as it is sent there, or None."""
        return self.ours if self.model is None else self.model

    @property
    def is_launched(self) -> bool:
        """Whether our launcher starts ranks."""
        return self.ours is not None or self.stock is not None

    @property
    def spelt(self) -> dict[str, Any]:
        """What our launcher is asked for as a dict, without the groups."""
        if self.options is not None:
            return self.options.distribution()
        return {} if self.stock is None else {self.stock: {"enabled": True}}

    @property
    def group_names(self) -> list[str]:
        """The groups that train by their names, whoever starts the ranks."""
        groups = self.groups or self.rest.get(GROUPS) or ()
        return [getattr(each, "instance_group_name", each) for each in groups]


def read_distribution(value: object) -> Distribution:
    """Take a `distribution=` apart.

    Raises:
        OptionError: It is no distribution; every unknown key and bad value is
            reported at once, each with the closest valid key.
    """
    if value is None:
        return Distribution()
    if isinstance(value, type):
        name = value.__name__
        raise OptionError(
            f"distribution is the class {name}", "it takes an object", f"Pass {name}()"
        )
    given = value.distribution() if isinstance(value, Strategy) else value
    if not isinstance(given, dict):
        raise OptionError(
            f"distribution is {value!r}",
            "it is neither an option of sagemaker_dist nor a dict",
            "Pass distribution=DataParallel()",
        )
    raise_all(spelling_faults(given))
    rest = {key: part for key, part in given.items() if key != OURS}
    return distribution_of(_build(given.get(OURS)), rest=rest)


def in_our_image(asked: Distribution) -> Distribution:
    """The same where our launcher runs the job: it takes what it serves out of `rest`.

    What is off is left out, so that `rest` is what our image cannot do: among it
    a strategy with options for mpirun.
    """
    raise_all(_open_faults(asked.rest))
    rest = {key: part for key, part in asked.rest.items() if is_on(key, part)}
    model = None if asked.is_launched else taken_over(rest)
    if model is not None:
        warnings = tuple(smp_warnings(rest.pop(AWS)[MODEL]["parameters"]))
        rest.pop("mpi", None)
        groups = tuple(rest.pop(GROUPS, ()))
        return distribution_of(model, groups=groups, rest=rest, warnings=warnings)
    if MODEL in rest.get(AWS, ()) and asked.ours is None:
        return Distribution(rest=rest)  # `taking_faults` says why
    groups = tuple(rest.pop(GROUPS, ()))
    ours = asked.ours
    if DATA in rest.get(AWS, ()) and not rest[AWS][DATA].get(MPI_OPTIONS):
        rest.pop(AWS)
        ours = ours or DataParallel()
    served = [
        key for key in (*STOCK, *STRATEGY_KEYS) if key in rest and not rest[key].get(MPI_OPTIONS)
    ]
    stock = next(iter(served), None) if asked.ours is None else None
    if stock is not None:
        rest.pop(stock)
    if ours is not None or stock is not None:
        stock = None if ours else stock
        return replace(asked, ours=ours, stock=stock, groups=groups, rest=rest)
    return Distribution(rest={**rest, GROUPS: list(groups)} if groups else rest)


def _open_faults(rest: Mapping[str, Any]) -> Iterator[OptionError]:
    """Switches that a pipeline would turn: our launcher has to know them now."""
    switches = {key: part for key, part in rest.items() if key not in (AWS, GROUPS)}
    for key, part in {**switches, **rest.get(AWS, {})}.items():
        if is_open(part.get("enabled")):
            yield OptionError(
                f"'enabled' of {key!r} in distribution is known to a pipeline alone",
                "the launcher of sagemaker_dist is asked when the pipeline is made",
                "Pass True or False",
            )


def is_on(key: str, part: Any) -> bool:
    """Whether a key of `distribution=` asks for anything."""
    if key == GROUPS:
        return bool(part)
    if key == AWS:
        return any(each.get("enabled", False) for each in part.values())
    return bool(part.get("enabled", False))


def _build(section: Mapping[str, Any] | None) -> Options | None:
    """What our own section asks for, of one strategy at most."""
    for key, options in (section or {}).items():
        if is_open(options.get("enabled")):
            raise_all(_open_faults({AWS: section}))
        if options.get("enabled", True):
            return KINDS[key](**{name: options[name] for name in OPTIONS[key] if name in options})
    return None


def distribution_of(options: Options | None, **parts: Any) -> Distribution:
    """The distribution that options of ours are; `parts` are those of a Distribution."""
    if isinstance(options, ModelParallel):
        return Distribution(ours=options.engine, model=options, **parts)
    return Distribution(ours=options, **parts)
