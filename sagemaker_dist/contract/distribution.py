# SPDX-License-Identifier: Apache-2.0
"""Parser of `distribution=`: a typed option, the same options as a dict, or a dict of SageMaker's.

    DataParallel(fusion_bytes=...)                            typed option
    {"smdist": {"dataparallel": {"fusion_bytes": ...}}}       the same as a dict
    ModelParallel(microbatches=...)                           typed option
    {"smdist": {"modelparallel": {"microbatches": ...}}}      the same as a dict
    {"torch_distributed": {"enabled": True}}                  dict of SageMaker's SDK

The image decides which launcher starts the ranks. For SageMaker's images, keys other
than "smdist" are passed to SageMaker's SDK unchanged. For the sagemaker-dist image,
`claim_for_launcher` selects the keys for which the sagemaker-dist launcher starts ranks;
the checks in `planning` refuse the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sagemaker_dist.contract.aws_distributions import MPI, SMDDP, Strategy, is_pipeline_variable
from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.distribution_keys import (
    AWS,
    DATA,
    GROUPS,
    KINDS,
    LAUNCH_KEYS,
    MODEL,
    MPI_OPTIONS,
    OPTIONS,
    SMDIST,
    STRATEGY_KEYS,
    spelling_faults,
)
from sagemaker_dist.contract.hyperparameter_format import Options
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.mpi_takeover import (
    MPI_KEY,
    smddp_faults,
    take_mpi_over,
    take_smddp_over,
)
from sagemaker_dist.contract.smp import smp_warnings
from sagemaker_dist.contract.smp_takeover import take_over
from sagemaker_dist.errors import OptionError, raise_all

_SECTIONS: Final = (SMDIST, AWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Parsed value of `distribution=`.

    Attributes:
        engine: Options of the smdist runtime for ranks and connections; None if the job does not
            use the runtime.
        model: Options for splitting the model; None if the model is not split. The options in
            `model.engine` are also stored as `engine`.
        sdk_key: Key of SageMaker's SDK, such as "torch_distributed", for which the sagemaker-dist
            launcher starts ranks without the smdist runtime; None if there is no such key.
        mpi: Request for mpirun, or for SMDDP with options of mpirun, whose ranks the sagemaker-dist
            launcher starts without MPI; None if there is no such request. `engine` has the number
            of ranks.
        groups: Instance groups in which the sagemaker-dist launcher starts ranks, each a name or
            an InstanceGroup; () for a job without groups.
        rest: Keys that are passed to SageMaker's SDK unchanged.
        warnings: Warnings, one sentence each, about options of AWS's library that have no effect in
            the sagemaker-dist image.
    """

    engine: DataParallel | None = None
    model: ModelParallel | None = None
    sdk_key: str | None = None
    mpi: MPI | SMDDP | None = None
    groups: tuple[Any, ...] = ()
    rest: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def options(self) -> Options | None:
        """Return the options for the smdist runtime; None if the job does not use the runtime."""
        return self.engine if self.model is None else self.model

    @property
    def is_launched(self) -> bool:
        """Return whether the sagemaker-dist launcher starts the ranks, not SageMaker's."""
        return self.engine is not None or self.sdk_key is not None

    @property
    def launched_keys(self) -> dict[str, Any]:
        """Return the part of `distribution=` for which the sagemaker-dist launcher starts ranks.

        The result has the format of `distribution=`, without instance groups. It is {} if another
        launcher starts the ranks.
        """
        if isinstance(self.mpi, MPI) and self.model is None:
            return self.mpi.distribution()
        if self.options is not None:
            return self.options.distribution()
        return {} if self.sdk_key is None else {self.sdk_key: {"enabled": True}}

    @property
    def group_names(self) -> list[str]:
        """Return the names of the instance groups whose hosts start ranks; [] if there are none."""
        groups = self.groups or self.rest.get(GROUPS) or ()
        return [getattr(each, "instance_group_name", each) for each in groups]


def read_distribution(value: object) -> Distribution:
    """Parse the value of `distribution=`: a typed option, a dict, or None for no distribution.

    Raises:
        OptionError: `value` is not a distribution. All unknown keys and wrong values are
            reported together; a hint has the closest valid key.
    """
    if value is None:
        return Distribution()
    if isinstance(value, type):
        name = value.__name__
        raise OptionError(
            f"distribution is the class {name}",
            "it needs an instance of the class",
            f"Pass {name}()",
            about="distribution",
            kind="type",
        )
    given = value.distribution() if isinstance(value, Strategy) else value
    if not isinstance(given, dict):
        raise OptionError(
            f"distribution is {value!r}",
            "it must be a dict or an object such as DataParallel()",
            "Pass distribution=DataParallel()",
            about="distribution",
            kind="type",
        )
    raise_all(spelling_faults(given))
    rest = {key: part for key, part in given.items() if key != SMDIST}
    return distribution_of(_build(given.get(SMDIST)), rest=rest)


def claim_for_launcher(given: Distribution) -> Distribution:
    """Return a copy of `given` for a job whose ranks the sagemaker-dist launcher starts.

    A key for which this launcher can start ranks is removed from `rest` and becomes the field
    `engine`, `model` or `sdk_key`. Keys that are not enabled are dropped. Then `rest` has only
    keys that this launcher refuses, such as "pytorchxla".

    Raises:
        OptionError: The value of "enabled" of a key is a pipeline variable, which gets its value
            only when the pipeline runs.
    """
    raise_all(_open_faults(given.rest))
    rest = {key: part for key, part in given.rest.items() if is_on(key, part)}
    model = None if given.is_launched else take_over(rest)
    if model is not None:
        warnings = tuple(smp_warnings(rest.pop(AWS)[MODEL]["parameters"]))
        mpi = take_mpi_over({MPI_KEY: rest.pop(MPI_KEY)}) if MPI_KEY in rest else None
        groups = tuple(rest.pop(GROUPS, ()))
        return distribution_of(model, mpi=mpi, groups=groups, rest=rest, warnings=warnings)
    if MODEL in rest.get(AWS, ()) and given.engine is None:
        return Distribution(rest=rest)  # `takeover_faults` has the reasons
    groups = tuple(rest.pop(GROUPS, ()))
    if not given.is_launched and (request := take_mpi_over(rest)) is not None:
        ranks = DataParallel(processes_per_host=request.processes_per_host or 1)
        return Distribution(engine=ranks, mpi=request, groups=groups)
    engine = given.engine
    with_options: SMDDP | None = None
    if DATA in rest.get(AWS, ()) and not any(smddp_faults(rest[AWS][DATA])):
        with_options = take_smddp_over(rest.pop(AWS)[DATA])
        engine = engine or DataParallel()
    served = [
        key
        for key in (*LAUNCH_KEYS, *STRATEGY_KEYS)
        if key in rest and not rest[key].get(MPI_OPTIONS)
    ]
    sdk_key = next(iter(served), None) if given.engine is None else None
    if sdk_key is not None:
        rest.pop(sdk_key)
    if engine is not None or sdk_key is not None:
        sdk_key = None if engine else sdk_key
        found = replace(given, engine=engine, sdk_key=sdk_key, groups=groups, rest=rest)
        return replace(found, mpi=with_options) if with_options else found
    return Distribution(rest={**rest, GROUPS: list(groups)} if groups else rest)


def _open_faults(rest: Mapping[str, Any]) -> Iterator[OptionError]:
    """Yield a fault for each key of `distribution=` whose "enabled" is a pipeline variable.

    A pipeline variable gets its value only when the pipeline runs. `rest` is `distribution=` as a
    dict.
    """
    switches: dict[tuple[str, ...], Any]
    switches = {(key,): part for key, part in rest.items() if key not in (*_SECTIONS, GROUPS)}
    for section in _SECTIONS:
        switches |= {(section, key): part for key, part in rest.get(section, {}).items()}
    for path, part in switches.items():
        if is_pipeline_variable(part.get("enabled")):
            yield OptionError(
                f"'enabled' of {path[-1]!r} in distribution is a pipeline variable",
                "sagemaker_dist needs its value already when the pipeline is created",
                "Pass True or False",
                about=("distribution", *path, "enabled"),
                kind="pipeline_variable",
            )


def is_on(key: str, part: Any) -> bool:
    """Return whether a key of `distribution=` is enabled by its value `part`."""
    if key == GROUPS:
        return bool(part)
    if key == AWS:
        return any(each.get("enabled", False) for each in part.values())
    return bool(part.get("enabled", False))


def _build(section: Mapping[str, Any] | None) -> Options | None:
    """Return the options in `section`, the value of the key "smdist" of `distribution=`.

    Returns None if the section is missing (None), empty, or not enabled.
    """
    for key, options in (section or {}).items():
        if is_pipeline_variable(options.get("enabled")):
            raise_all(_open_faults({SMDIST: section}))
        if options.get("enabled", True):
            return KINDS[key](**{name: options[name] for name in OPTIONS[key] if name in options})
    return None


def distribution_of(options: Options | None, **parts: Any) -> Distribution:
    """Return a Distribution whose fields `engine` and `model` are set from `options`.

    Both fields are None if `options` is None. `parts` are the values of the other fields.
    """
    if isinstance(options, ModelParallel):
        return Distribution(engine=options.engine, model=options, **parts)
    return Distribution(engine=options, **parts)
