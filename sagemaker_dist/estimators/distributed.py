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
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar

import boto3
from sagemaker.deprecations import renamed_kwargs
from sagemaker.estimator import EstimatorBase
from sagemaker.workflow import is_pipeline_variable

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS
from sagemaker_dist.contract import Distribution, in_our_image, read_distribution
from sagemaker_dist.contract.launching import launch_parameters
from sagemaker_dist.errors import JobError, OptionError, raise_all
from sagemaker_dist.estimators import facts
from sagemaker_dist.estimators.jobs import job_to_build, job_to_fit, runs_here
from sagemaker_dist.estimators.layout import laid_out, local_source, source_params
from sagemaker_dist.estimators.local_session import ROLE, LocalClient, LocalSession
from sagemaker_dist.estimators.sdk import offline, quiet
from sagemaker_dist.estimators.stock import (
    amount_faults,
    as_instance_groups,
    asked_in,
    with_own_groups,
)
from sagemaker_dist.gathering import as_count, with_our_metrics, with_parameters
from sagemaker_dist.packaging import default_tag, ecr_image, is_ours
from sagemaker_dist.planning import construction_faults, construction_warnings, fit_faults
from sagemaker_dist.planning.faults import JOB_NAME, source_faults
from sagemaker_dist.planning.local_job import PROGRAM
from sagemaker_dist.planning.service.options import SCRIPT_PARAMETERS
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
        kind: The parent's name.
        framework: Whose image of ours jobs have by default, or None.
        names_image: Arguments that ask for an image of the parent's.
        stem: How jobs without an image are called.
        configures: The parent's method that makes hyperparameters of a distribution.
    """

    kind: ClassVar[str]
    framework: ClassVar[str | None] = None
    names_image: ClassVar[tuple[str, ...]] = ("framework_version",)
    stem: ClassVar[str]
    configures: ClassVar[str | None] = "_distribution_configuration"

    def __init__(self, *, distribution: Any = None, **kwargs: Any) -> None:
        _use_new_names(kwargs)
        asked = self._check(distribution, kwargs)
        image_uri, instance_type = kwargs.pop("image_uri", None), kwargs.get("instance_type")
        is_local = runs_here(instance_type, kwargs.get("sagemaker_session"))
        rest = with_own_groups(asked.rest, kwargs.get("instance_groups"))
        is_theirs = not asked.is_launched and any(kwargs.get(name) for name in self.names_image)
        self._finds_image = image_uri is None and not is_theirs
        needs_image = (is_local or asked.is_launched) and self._finds_image
        _set_defaults(kwargs, asked, is_local)
        with quiet(), _cut_off(kwargs) if is_local else nullcontext():
            super().__init__(
                image_uri=self.stem + _NO_IMAGE if needs_image else image_uri,
                distribution=rest or None,
                **kwargs,
            )
        self.image_uri = image_uri
        self.instance_type = instance_type
        self._script: str | None = None
        self._asked = replace(asked, rest={})
        if asked.is_launched:  # the dict form: the parent looks up its own keys here
            self.distribution = asked.spelt

    def _check(self, distribution: Any, given: dict[str, Any]) -> Distribution:
        raise_all(facts.kind_faults(given))  # all else takes them for text
        faults: list[OptionError] = []
        asked = Distribution()
        image_is_ours = True
        try:
            asked = read_distribution(with_parameters(distribution))
            image_is_ours = self._runs_our_launcher(asked, given)
            asked = in_our_image(asked) if image_is_ours else asked
        except OptionError as error:
            faults.append(error)
        job = job_to_build(type(self), asked, given, image_is_ours=image_is_ours)
        faults += [*construction_faults(job), *self._faults(asked, given)]
        faults += _half_named(self.names_image, given) if image_is_ours else []
        if faults:
            source = (given.get(name) for name in ("entry_point", "source_dir", "git_config"))
            raise_all([*faults, *source_faults(facts.source(*source))])
        for warning in construction_warnings(job):
            warnings.warn(warning, UserWarning, stacklevel=4)
        return asked

    def _runs_our_launcher(self, asked: Distribution, given: Mapping[str, Any]) -> bool:
        """Whether our launcher will run the job, as far as names of images tell."""
        here, image = given.get("instance_type"), given.get("image_uri")
        if asked.ours is not None or here == LOCAL_PROCESS:
            return True
        if image is None:
            return not any(given.get(name) for name in self.names_image)
        return is_ours(image) or runs_here(here, given.get("sagemaker_session"))

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
        is_found = self._finds_image and (self._asked.is_launched or self._is_local)
        if self.framework is None or not is_found:
            return super().training_image_uri(region)
        if self.instance_type in LOCAL:
            return default_tag(self.framework)
        return ecr_image(self.sagemaker_session.boto_session, self.framework)

    def hyperparameters(self) -> dict[str, Any]:
        """The parent's, and what our launcher is asked for."""
        values: dict[str, Any] = {**super().hyperparameters()}
        added = self._added()
        values.update(EstimatorBase._json_encode_hyperparameters(added))
        if self._script is not None:
            values[PROGRAM] = json.dumps(self._script)
        return values

    def _added(self) -> dict[str, Any]:
        return launch_parameters(self._asked, self.instance_type, self.framework)

    def validate(self, inputs: Any = None, job_name: str | None = None) -> None:
        """Check all that `fit` checks before it starts anything; asks neither AWS nor Docker.

        Raises:
            OptionError: The request is wrong; every fault is reported at once.
        """
        job = job_to_fit(self, self._asked, self._as_given(inputs), job_name)
        raise_all([*fit_faults(job), *self._parents_faults()])

    def _parents_faults(self) -> Iterator[OptionError]:
        """What the parent would say only after it has uploaded the code."""
        added: dict[str, Any] = self._added()
        if self.configures and not self._asked.is_launched and not self._is_local:
            try:
                added = getattr(self, self.configures)(self.distribution)
            except ValueError as error:
                what = f"SageMaker's {self.kind} refuses the distribution"
                yield OptionError(what, str(error).strip(), "Correct it")
        names = {*(getattr(self, "_hyperparameters", None) or ()), *SCRIPT_PARAMETERS}
        yield from amount_faults(names, added)
        yield from self._image_faults()

    def _image_faults(self) -> Iterator[OptionError]:
        is_known = not any(map(is_pipeline_variable, (self.instance_type, self.image_uri)))
        if self.image_uri is not None or self._finds_image or not is_known:
            return
        try:
            self.training_image_uri()
        except ValueError as error:
            yield OptionError(
                f"SageMaker's {self.kind} finds no image for the job",
                str(error).strip(),
                "Correct it",
            )

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
        if not self._is_local:
            self.validate(None, job_name)  # a tuner comes this way alone
        super()._prepare_for_training(job_name=job_name)
        path: Any = self.checkpoint_local_path  # SageMaker tells its place to nobody in the job
        if self._asked.is_launched and path:
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
        asked = job_details.get("ResourceConfig") or job_details[_TUNER_RESOURCES]  # a tuner's
        resources = {"InstanceType": None, "InstanceCount": None, **asked}  # groups have neither
        params: dict[str, Any] = super()._prepare_init_params_from_job_description(
            {**job_details, "ResourceConfig": resources}, model_channel_name
        )
        params["instance_groups"] = as_instance_groups(resources)
        params["hyperparameters"] = dict(params["hyperparameters"])
        params["base_job_name"] = params["base_job_name"] or None  # a tuner has none
        is_here = params["instance_type"] == LOCAL_PROCESS or is_ours(params.get("image_uri"))
        is_here = is_here or not cls.names_image  # a generic one asks nobody else
        params.update(asked_in(params["hyperparameters"], image_is_ours=is_here))
        if params["instance_type"] in {LOCAL_PROCESS, *LOCAL}:
            params.update(source_params(job_details, params.get("source_dir")))
            checkpoint = job_details.get("CheckpointConfig", {})
            params["checkpoint_s3_uri"] = checkpoint.get("S3Uri")
            params["checkpoint_local_path"] = checkpoint.get("LocalPath")
            image: str = job_details["AlgorithmSpecification"]["TrainingImage"]
            params["image_uri"] = None if image.endswith(_NO_IMAGE) else image
        return params


def _half_named(names: tuple[str, ...], given: Mapping[str, Any]) -> list[OptionError]:
    version = given.get("py_version")
    if version is None or given.get("image_uri") is not None or not names:
        return []
    if any(given.get(name) for name in names):
        return []
    what, why = f"py_version is {version!r}", f"{names[0]} is left out, and our image has its own"
    return [OptionError(what, why, f"Pass {names[0]} as well for SageMaker's, or leave it out")]


def _use_new_names(kwargs: dict[str, Any]) -> None:
    for old, new in _RENAMED.items():
        if old in kwargs:
            renamed_kwargs(old, new, None, kwargs)  # warns as the parent does
            del kwargs[old]


def _set_defaults(kwargs: dict[str, Any], asked: Distribution, is_local: bool) -> None:
    """Leave out what the parent adds to every job but our image does not hold."""
    if "instance_count" in kwargs:
        kwargs["instance_count"] = as_count(kwargs["instance_count"])
    if is_local:
        kwargs["instance_type"] = LOCAL_PROCESS  # its own local mode takes one GPU host at most
        kwargs["sagemaker_session"] = kwargs.get("sagemaker_session") or LocalSession()
        kwargs["role"] = kwargs.get("role") or ROLE
    if asked.is_launched:
        kwargs["metric_definitions"] = with_our_metrics(kwargs.get("metric_definitions"))
        kwargs.setdefault("enable_sagemaker_metrics", True)
    if asked.is_launched or is_local:
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
            "Check the name, or set AWS_DEFAULT_REGION",
        )
    return None
