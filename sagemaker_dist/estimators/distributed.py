# SPDX-License-Identifier: Apache-2.0
"""What our Estimators have in common: our distribution and our local modes.

    PyTorch → Distributed → sagemaker.pytorch.PyTorch → ... → EstimatorBase

Everything else is the parent's: our keys are taken out of `distribution`
before the parent sees it, and come back as one hyperparameter.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, ClassVar, Final, TypeVar

import boto3
from sagemaker.deprecations import renamed_kwargs
from sagemaker.estimator import EstimatorBase

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS
from sagemaker_dist.contract import (
    KEY,
    DataParallel,
    Distribution,
    parse,
    read_distribution,
    render,
)
from sagemaker_dist.contract.distribution import OURS
from sagemaker_dist.errors import JobError, OptionError, raise_all
from sagemaker_dist.estimators import facts
from sagemaker_dist.estimators.jobs import job_to_build, job_to_fit, runs_here
from sagemaker_dist.estimators.layout import laid_out, local_source, source_params
from sagemaker_dist.estimators.local_session import ROLE, LocalClient, LocalSession
from sagemaker_dist.estimators.sdk import offline, quiet
from sagemaker_dist.packaging import default_tag, ecr_image
from sagemaker_dist.planning import construction_faults, fit_faults, travel_warning
from sagemaker_dist.planning.faults import JOB_NAME, source_faults
from sagemaker_dist.planning.local_job import PROGRAM
from sagemaker_dist.runners import LocalRunner

_NO_IMAGE: Final = ":local_process"  # what stands before it gives jobs their usual name
_CHECKPOINTS: Final = "SM_CHECKPOINT_DIR"
_TUNER_RESOURCES: Final = "HyperParameterTuningResourceConfig"
_RENAMED: Final = {  # names of version 1 that SageMaker SDK 2.257.7 still reads, and we too
    "image_name": "image_uri",
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
}
_Self = TypeVar("_Self", bound="Distributed")


class Distributed(EstimatorBase):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """Stands between a class of ours and the parent that it is a drop-in for.

    Attributes:
        framework: Whose image of ours jobs have by default, or None.
        names_image: Arguments that ask for an image of the parent's.
        stem: How jobs without an image are called.
    """

    framework: ClassVar[str | None] = None
    names_image: ClassVar[tuple[str, ...]] = ("framework_version",)
    stem: ClassVar[str]

    def __init__(self, *, distribution: Any = None, **kwargs: Any) -> None:
        _use_new_names(kwargs)
        asked = self._check(distribution, kwargs)
        image_uri, instance_type = kwargs.pop("image_uri", None), kwargs.get("instance_type")
        is_local = runs_here(instance_type, kwargs.get("sagemaker_session"))
        is_theirs = asked.ours is None and any(kwargs.get(name) for name in self.names_image)
        self._finds_image = image_uri is None and not is_theirs
        needs_image = (is_local or asked.ours is not None) and self._finds_image
        _set_defaults(kwargs, asked, is_local)
        with quiet(), _cut_off(kwargs) if is_local else nullcontext():
            super().__init__(
                image_uri=self.stem + _NO_IMAGE if needs_image else image_uri,
                distribution=asked.rest or None,
                **kwargs,
            )
        self.image_uri = image_uri
        self.instance_type = instance_type
        self._script: str | None = None
        self._wire = render(asked.ours) if asked.ours else None
        if asked.ours is not None:  # the dict form: the parent looks up its own keys here
            self.distribution = {**asked.rest, OURS: {"dataparallel": asdict(asked.ours)}}

    def _check(self, distribution: Any, given: dict[str, Any]) -> Distribution:
        faults: list[OptionError] = []
        asked = Distribution()
        try:
            asked = self._read(distribution)
        except OptionError as error:
            faults.append(error)
        job = job_to_build(type(self), self.framework, asked, given)
        faults += [*construction_faults(job), *self._faults(asked, given)]
        if faults:
            source = (given.get(name) for name in ("entry_point", "source_dir", "git_config"))
            raise_all([*faults, *source_faults(facts.source(*source))])
        warning = travel_warning(job)
        if warning:
            warnings.warn(warning, UserWarning, stacklevel=4)
        return asked

    def _read(self, distribution: Any) -> Distribution:
        """Take `distribution` apart; a class whose runtime lacks something refuses it here."""
        return read_distribution(distribution)

    def _faults(self, asked: Distribution, given: Mapping[str, Any]) -> Iterator[OptionError]:  # noqa: ARG002 - for classes
        """What else is wrong with the arguments of this class alone."""
        yield from ()

    @property
    def _is_local(self) -> bool:
        return runs_here(self.instance_type, self.sagemaker_session)

    def training_image_uri(self, region: str | None = None) -> Any:
        """The image of the job; local processes have none.

        Raises:
            SetupError: None is named and none was built or pushed.
            SkewError: None is named, and those that were pushed are of other versions.
        """
        if self.image_uri is not None:
            return self.image_uri
        if self.instance_type == LOCAL_PROCESS:
            return self.stem + _NO_IMAGE
        is_ours = self._finds_image and (self._wire is not None or self._is_local)
        if self.framework is None or not is_ours:
            return super().training_image_uri(region)
        if self.instance_type in LOCAL:
            return default_tag(self.framework)
        return ecr_image(self.sagemaker_session.boto_session, self.framework)

    def hyperparameters(self) -> dict[str, Any]:
        """The parent's, and the options of our distribution."""
        values: dict[str, Any] = {**super().hyperparameters()}
        if self._wire is not None:
            values.update(EstimatorBase._json_encode_hyperparameters({KEY: self._wire}))
        if self._script is not None:
            values[PROGRAM] = json.dumps(self._script)
        return values

    def validate(self, inputs: Any = None, job_name: str | None = None) -> None:
        """Check all that `fit` checks before it starts anything; asks neither AWS nor Docker.

        Raises:
            OptionError: The request is wrong; every fault is reported at once.
        """
        job = job_to_fit(self, self._ours, self._as_given(inputs), job_name)
        raise_all(fit_faults(job))

    def _as_given(self, inputs: Any) -> Any:
        """Short forms of inputs, spelt out."""
        inputs = facts.as_file_systems(inputs)
        return facts.as_uris(inputs) if self._is_local else inputs

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: Any = "All",
        job_name: str | None = None,
        experiment_config: dict[str, str] | None = None,
    ) -> Any:
        """Train. Everything that can be checked is checked before anything starts.

        Raises:
            OptionError: The request is wrong; every fault is reported at once.
            JobError: A job of local processes failed.
        """
        inputs = self._as_given(inputs)
        self.validate(inputs, job_name)
        if not self._is_local:
            return super().fit(inputs, wait, logs, job_name, experiment_config)
        client: LocalClient = self.sagemaker_session.sagemaker_client
        with client.attending():
            self._start_locally(inputs, wait, job_name, experiment_config)
            if wait:
                self.latest_training_job.wait(logs=logs)
        return None

    @property
    def _ours(self) -> DataParallel | None:
        return parse(self._wire) if self._wire else None

    @classmethod
    def attach(
        cls: type[_Self],
        training_job_name: str,
        sagemaker_session: Any = None,
        model_channel_name: str = "model",
    ) -> _Self:
        """An estimator of a job by its name; without a session, local jobs are looked at first.

        Raises:
            JobError: This machine has no such job, and no region of AWS is set.
        """
        if sagemaker_session is None and JOB_NAME.fullmatch(training_job_name):
            sagemaker_session = _session_of(training_job_name)
        attached: _Self = super().attach(training_job_name, sagemaker_session, model_channel_name)
        return attached

    def _prepare_for_training(self, job_name: str | None = None) -> None:
        super()._prepare_for_training(job_name=job_name)
        path: Any = self.checkpoint_local_path  # SageMaker tells its place to nobody in the job
        if self._wire is not None and path:
            given = self.environment  # type: ignore[has-type]  # SageMaker's SDK is untyped
            self.environment = {_CHECKPOINTS: path, **(given or {})}

    def _start_locally(
        self, inputs: Any, wait: bool, job_name: str | None, experiment_config: Any
    ) -> None:
        session, before = self.sagemaker_session, self.latest_training_job
        with self._laid_out() as extra, session.starting(attended=wait, **extra), quiet():
            super().fit(inputs, False, "None", job_name, experiment_config)
        if self.latest_training_job is before:
            raise KeyboardInterrupt  # the parent swallowed it

    @contextmanager
    def _laid_out(self) -> Iterator[dict[str, Any]]:
        source = local_source(self)
        if source is not None and source.only is None:
            self._script = str(self.entry_point)
        try:
            with laid_out(self, source) as extra:
                yield extra
        finally:
            self._script = None

    @classmethod
    def _prepare_init_params_from_job_description(
        cls, job_details: dict[str, Any], model_channel_name: str | None = None
    ) -> dict[str, Any]:
        """What `attach` builds an estimator of: with our distribution, as it was given."""
        resources = job_details.get(_TUNER_RESOURCES)  # how a tuner asks, unknown to its attach
        details = {**({"ResourceConfig": resources} if resources else {}), **job_details}
        params: dict[str, Any] = super()._prepare_init_params_from_job_description(
            details, model_channel_name
        )
        params["hyperparameters"] = dict(params["hyperparameters"])
        params["base_job_name"] = params["base_job_name"] or None  # a tuner has none
        wire = params["hyperparameters"].pop(KEY, None)
        if wire is not None:
            params["distribution"] = parse(wire)
        if params["instance_type"] in {LOCAL_PROCESS, *LOCAL}:
            params.update(source_params(job_details, params.get("source_dir")))
            checkpoint = job_details.get("CheckpointConfig", {})
            params["checkpoint_s3_uri"] = checkpoint.get("S3Uri")
            params["checkpoint_local_path"] = checkpoint.get("LocalPath")
            image: str = job_details["AlgorithmSpecification"]["TrainingImage"]
            params["image_uri"] = None if image.endswith(_NO_IMAGE) else image
        return params


def _use_new_names(kwargs: dict[str, Any]) -> None:
    for old, new in _RENAMED.items():
        if old in kwargs:
            renamed_kwargs(old, new, None, kwargs)  # warns as the parent does
            del kwargs[old]


def _set_defaults(kwargs: dict[str, Any], asked: Distribution, is_local: bool) -> None:
    """Leave out what the parent adds to every job but our image does not hold."""
    if "instance_count" in kwargs:
        kwargs["instance_count"] = facts.count(kwargs["instance_count"])
    if is_local:
        kwargs["instance_type"] = LOCAL_PROCESS  # its own local mode takes one GPU host at most
        kwargs["sagemaker_session"] = kwargs.get("sagemaker_session") or LocalSession()
        kwargs["role"] = kwargs.get("role") or ROLE
    if asked.ours is not None or is_local:
        kwargs.setdefault("debugger_hook_config", False)
        if kwargs.get("profiler_config") is None:
            kwargs.setdefault("disable_profiler", True)


@contextmanager
def _cut_off(kwargs: dict[str, Any]) -> Iterator[None]:
    session: LocalSession = kwargs["sagemaker_session"]
    with offline(), session.without_defaults():
        yield


def _session_of(name: str) -> LocalSession | None:
    """The session of a job of this machine; None where AWS may know it."""
    runner = LocalRunner()
    if runner.exists(name):
        return LocalSession(runner=runner)
    if boto3.Session().region_name is None:
        raise JobError(
            f"there is no job {name!r}",
            f"{runner.root} holds none of this name, and no region of AWS is set to look in",
            "Check the name, or set AWS_REGION",
        )
    return None
