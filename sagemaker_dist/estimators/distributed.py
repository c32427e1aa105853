# SPDX-License-Identifier: Apache-2.0
"""Base class of the Estimators, with the distributions and local modes of sagemaker-dist.

Each Estimator inherits first from `Distributed`, then from the SDK's class of the same name. For
example, Python looks up the methods of `PyTorch` in this order:

    PyTorch → Distributed → sagemaker.pytorch.PyTorch → ... → EstimatorBase

The SDK's class does all work that `Distributed` does not do. `Distributed` removes the "smdist"
keys from the argument `distribution` before the SDK's class gets it. `Distributed` sends these keys
to the job as one hyperparameter.
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

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, training_instances
from sagemaker_dist.contract import Distribution, claim_for_launcher, read_distribution
from sagemaker_dist.contract.launch_contract import launch_parameters
from sagemaker_dist.errors import JobError, OptionError, raise_all
from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.estimators.checked_job import job_to_build, job_to_fit, runs_here
from sagemaker_dist.estimators.code_digest import code_digest
from sagemaker_dist.estimators.estimator_budget import BudgetedJob, limited
from sagemaker_dist.estimators.from_description import (
    amount_faults,
    distribution_in,
    instance_groups_of,
    use_estimator_groups,
)
from sagemaker_dist.estimators.local_layout import local_attributes, local_source, source_params
from sagemaker_dist.estimators.local_session import ROLE, LocalClient, LocalSession
from sagemaker_dist.estimators.sagemaker_sdk import offline, quiet
from sagemaker_dist.estimators.secret_upload import upload_secret_of
from sagemaker_dist.estimators.taken_name import refuse_taken_name
from sagemaker_dist.gathering import add_runtime_metrics, plain_count, with_parameters
from sagemaker_dist.packaging import (
    default_tag,
    ecr_image,
    is_sagemaker_dist_image,
    remote_gpu_faults,
)
from sagemaker_dist.planning import (
    construction_faults,
    construction_warnings,
    fit_faults,
    without_consequences,
)
from sagemaker_dist.planning.job_faults import JOB_NAME, source_faults
from sagemaker_dist.planning.local_job import PROGRAM
from sagemaker_dist.planning.service.hyperparameter_checks import SCRIPT_PARAMETERS
from sagemaker_dist.runners import LocalRunner

_NO_IMAGE: Final = (
    ":local_process"  # tag of a placeholder image; its repository is the job's base name
)
_CHECKPOINTS: Final = "SM_CHECKPOINT_DIR"
_TUNER_RESOURCES: Final = "HyperParameterTuningResourceConfig"
_RENAMED: Final = {  # names of version 1 that SageMaker SDK 2.257.7 still accepts
    "image_name": "image_uri",
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
}
_Self = TypeVar("_Self", bound="Distributed")


class Distributed(BudgetedJob, EstimatorBase):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """Base class of this package's Estimators. Each of them also inherits from an SDK Estimator.

    Attributes:
        kind: Name of the SDK's class, such as "PyTorch".
        framework: Framework of the sagemaker-dist image that is used if the user names no image,
            such as "torch". None if there is no such image.
        names_image: Names of the arguments that select one of SageMaker's images, such as
            "framework_version".
        stem: Beginning of the default job name, for jobs whose `image_uri` is not known yet.
        configures: Name of the SDK's method that converts `distribution=` to hyperparameters. It
            is called for jobs that SageMaker's own launcher starts. None if there is no such
            method.
    """

    kind: ClassVar[str]
    framework: ClassVar[str | None] = None
    names_image: ClassVar[tuple[str, ...]] = ("framework_version",)
    stem: ClassVar[str]
    configures: ClassVar[str | None] = "_distribution_configuration"

    def __init__(
        self,
        *,
        distribution: Any = None,
        max_cost: float | None = None,
        price_per_hour: float | None = None,
        **kwargs: Any,
    ) -> None:
        _use_new_names(kwargs)
        parsed = self._check(
            distribution, {**kwargs, "max_cost": max_cost, "price_per_hour": price_per_hour}
        )
        self.max_cost = self.price_per_hour = None  # SageMaker's class first gets max_run as it is
        image_uri, instance_type = kwargs.pop("image_uri", None), kwargs.get("instance_type")
        is_local = runs_here(instance_type, kwargs.get("sagemaker_session"))
        rest = use_estimator_groups(parsed.rest, kwargs.get("instance_groups"))
        is_parents_image = not parsed.is_launched and any(
            kwargs.get(name) for name in self.names_image
        )
        self._finds_image = image_uri is None and not is_parents_image
        needs_image = (is_local or parsed.is_launched) and self._finds_image
        _set_defaults(kwargs, parsed, is_local)
        with quiet(), _without_aws(kwargs) if is_local else nullcontext():
            super().__init__(
                image_uri=self.stem + _NO_IMAGE if needs_image else image_uri,
                distribution=rest or None,
                **kwargs,
            )
        self.max_cost, self.price_per_hour = max_cost, price_per_hour
        self.image_uri = image_uri
        self.instance_type = instance_type
        self._script: str | None = None
        self._is_named = False
        self._parsed = replace(parsed, rest={})
        if parsed.is_launched:  # a dict, in which the parent looks up its own keys
            self.distribution = parsed.launched_keys

    def _check(self, distribution: Any, given: dict[str, Any]) -> Distribution:
        raise_all(estimator_facts.kind_faults(given))  # the other checks expect right types
        faults: list[OptionError] = []
        parsed = Distribution()
        uses_launcher = True
        try:
            parsed = read_distribution(with_parameters(distribution))
            uses_launcher = self._runs_our_launcher(parsed, given)
            parsed = claim_for_launcher(parsed) if uses_launcher else parsed
        except OptionError as error:
            faults.append(error)
        try:
            given = limited(given)
        except OptionError as error:
            faults.append(error)
        job = job_to_build(type(self), parsed, given, uses_launcher=uses_launcher)
        faults += [*construction_faults(job), *self._faults(parsed, given)]
        faults += _half_named(self.names_image, given) if uses_launcher else []
        if faults:
            source = (given.get(name) for name in ("entry_point", "source_dir", "git_config"))
            faults += source_faults(estimator_facts.source(*source))
            raise_all(without_consequences(faults))
        for warning in construction_warnings(job):
            warnings.warn(warning, UserWarning, stacklevel=4)
        return parsed

    def _runs_our_launcher(self, parsed: Distribution, given: Mapping[str, Any]) -> bool:
        """Return whether the sagemaker-dist launcher starts the ranks of a job.

        The result is True in three cases:

        * The distribution needs the smdist runtime, or the instance type is "local_process".
        * Without image_uri: no argument such as framework_version selects an image of SageMaker.
        * With image_uri: it is a sagemaker-dist image, or sagemaker-dist runs the containers on
          this machine.

        Args:
            parsed: Parsed argument `distribution` of the constructor.
            given: The other arguments of the constructor, by name.
        """
        here, image = given.get("instance_type"), given.get("image_uri")
        if parsed.engine is not None or here == LOCAL_PROCESS:
            return True
        if image is None:
            return not any(given.get(name) for name in self.names_image)
        return is_sagemaker_dist_image(image) or runs_here(here, given.get("sagemaker_session"))

    def _faults(self, parsed: Distribution, given: Mapping[str, Any]) -> Iterator[OptionError]:  # noqa: ARG002 - for classes
        """Yield errors in the constructor's arguments that are specific to one Estimator.

        The base class yields none; a subclass overrides this method. `parsed` is the parsed
        argument `distribution`; `given` has the other arguments by name.
        """
        yield from ()

    @property
    def _is_local(self) -> bool:
        return runs_here(self.instance_type, self.sagemaker_session)

    def training_image_uri(self, region: str | None = None) -> Any:
        """Return the URI of the job's image in the AWS region `region`.

        For local processes, which have no image, the result is a placeholder.

        Raises:
            SetupError: image_uri is left out, and the sagemaker-dist image was not pushed to ECR.
            SkewError: image_uri is left out, and the images in ECR have other versions than this
                package.
        """
        if self.image_uri is not None:
            return self.image_uri
        if self.instance_type == LOCAL_PROCESS:
            return self.stem + _NO_IMAGE
        is_found = self._finds_image and (self._parsed.is_launched or self._is_local)
        if self.framework is None or not is_found:
            return super().training_image_uri(region)
        if self.instance_type in LOCAL:
            return default_tag(self.framework)
        return ecr_image(self.sagemaker_session.boto_session, self.framework)

    def hyperparameters(self) -> dict[str, Any]:
        """Return the job's hyperparameters, including those for the sagemaker-dist launcher."""
        values: dict[str, Any] = {**super().hyperparameters()}
        added = self._added()
        values.update(EstimatorBase._json_encode_hyperparameters(added))
        if self._script is not None:
            values[PROGRAM] = json.dumps(self._script)
        return values

    def _added(self) -> dict[str, Any]:
        return launch_parameters(self._parsed, self.instance_type, self.framework)

    def validate(self, inputs: Any = None, job_name: str | None = None) -> None:
        """Check the arguments of the estimator and of `fit`, without starting anything.

        AWS is not called.

        Raises:
            OptionError: The request is wrong; all faults are reported together.
        """
        job = job_to_fit(self, self._parsed, self._expand_inputs(inputs), job_name)
        raise_all([*fit_faults(job), *self._parents_faults()])

    def _parents_faults(self) -> Iterator[OptionError]:
        """Yield errors that the SDK would find only later, after the upload of the code."""
        added: dict[str, Any] = self._added()
        if self.configures and not self._parsed.is_launched and not self._is_local:
            try:
                added = getattr(self, self.configures)(self.distribution)
            except ValueError as error:
                what = f"SageMaker's {self.kind} does not accept the value of distribution"
                hint = "Change this value"
                yield OptionError(what, str(error).strip(), hint, "distribution", kind="refused")
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
                "Correct the arguments that name the image, or pass image_uri",
                "image_uri",
                kind="refused",
            )

    def _expand_inputs(self, inputs: Any) -> Any:
        """Return the argument `inputs` of `fit` in a form that the SDK accepts.

        URIs of file systems become FileSystemInputs. In a local job, Paths become file:// URIs.
        """
        inputs = estimator_facts.expand_file_systems(inputs)
        return estimator_facts.expand_paths(inputs) if self._is_local else inputs

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: Any = "All",
        job_name: str | None = None,
        experiment_config: dict[str, str] | None = None,
    ) -> Any:
        """Start the training job; all checks run before anything is uploaded or started.

        The arguments are those of the SDK's `fit`. With `wait`, return when the job has ended. The
        result is None or, with a PipelineSession of the SDK, the arguments of a pipeline step.

        Raises:
            OptionError: The request is wrong; all faults are reported together. Or a job of this
                name exists.
            JobError: A job of this machine failed.
        """
        inputs = self._expand_inputs(inputs)
        self.validate(inputs, job_name)
        if budget := self._budget:
            print(budget.line(self._max_run))  # noqa: T201 - for the user at the terminal
        if not self._is_local:
            refuse_taken_name(self.sagemaker_session, job_name)
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
        """Return an estimator that is attached to an existing job, as the SDK's `attach` does.

        Without `sagemaker_session`, the job is looked up on this machine first, then on SageMaker.
        `model_channel_name` is the name of the channel with the model of `model_uri`.

        Raises:
            JobError: This machine has no such job, and no AWS region is set.
        """
        if sagemaker_session is None and JOB_NAME.fullmatch(training_job_name):
            sagemaker_session = _session_of(training_job_name)
        attached: _Self = super().attach(training_job_name, sagemaker_session, model_channel_name)
        return attached

    def _prepare_for_training(self, job_name: str | None = None) -> None:
        if not self._is_local:
            self.validate(None, job_name)  # a tuner does not call `fit`
            raise_all(self._gpu_faults())
        self._is_named = job_name is not None
        super()._prepare_for_training(job_name=job_name)
        path: Any = self.checkpoint_local_path  # SageMaker does not pass it to the job
        if self._parsed.is_launched and path:
            given = self.environment
            self.environment = {_CHECKPOINTS: path, **(given or {})}
        self._set_price()

    def _gpu_faults(self) -> Iterator[OptionError]:
        groups = getattr(self, "instance_groups", None) or ()
        types = [each.instance_type for each in groups] or [self.instance_type]
        known = training_instances()
        names = [each for each in types if isinstance(each, str) and each in known]
        has_gpus = any(known[name].has_gpu for name in names)
        image = self.training_image_uri() if self._parsed.is_launched and has_gpus else None
        if isinstance(image, str):
            yield from remote_gpu_faults(self.sagemaker_session.boto_session, image, names)

    def _stage_user_code_in_s3(self) -> Any:
        uploaded = super()._stage_user_code_in_s3()
        if self._parsed.is_launched and not self._is_local:
            upload_secret_of(self, uploaded.s3_prefix)
        return uploaded

    def _assign_s3_prefix(self, key_prefix: str = "") -> Any:
        """Return the S3 prefix of the code; it ends in a digest if the caller named the job.

        So two submissions with one name, at the same time, do not overwrite each other's code.
        """
        prefix = super()._assign_s3_prefix(key_prefix)
        if self._is_named and self._parsed.is_launched and not self._is_local:
            return "/".join(filter(None, (prefix, code_digest(self))))
        return prefix

    def _start_locally(
        self, inputs: Any, wait: bool, job_name: str | None, experiment_config: Any
    ) -> None:
        session, before = self.sagemaker_session, self.latest_training_job
        with self._local_attributes() as extra, session.starting(attended=wait, **extra), quiet():
            super().fit(inputs, False, "None", job_name, experiment_config)
        if self.latest_training_job is before:
            raise KeyboardInterrupt  # the SDK caught Ctrl-C and returned without a job

    @contextmanager
    def _local_attributes(self) -> Iterator[dict[str, Any]]:
        source = local_source(self)
        if source is not None and source.only is None:
            self._script = str(self.entry_point)
        try:
            with local_attributes(self, source) as extra:
                yield extra
        finally:
            self._script = None

    @classmethod
    def _prepare_init_params_from_job_description(
        cls, job_details: dict[str, Any], model_channel_name: str | None = None
    ) -> dict[str, Any]:
        """Return the constructor's arguments of an estimator for an existing job, for `attach`.

        `job_details` is DescribeTrainingJob's answer, or a tuner's description of its jobs.
        `model_channel_name` is the name of the channel with the model of `model_uri`.
        """
        found = job_details.get("ResourceConfig") or job_details[_TUNER_RESOURCES]
        resources = {
            "InstanceType": None,
            "InstanceCount": None,
            **found,
        }  # a job with instance groups has neither
        params: dict[str, Any] = super()._prepare_init_params_from_job_description(
            {**job_details, "ResourceConfig": resources}, model_channel_name
        )
        params["instance_groups"] = instance_groups_of(resources)
        params["hyperparameters"] = dict(params["hyperparameters"])
        params["base_job_name"] = params["base_job_name"] or None  # a tuner's is empty
        is_here = params["instance_type"] == LOCAL_PROCESS or is_sagemaker_dist_image(
            params.get("image_uri")
        )
        is_here = is_here or not cls.names_image  # the generic Estimator has no other launcher
        params.update(distribution_in(params["hyperparameters"], uses_launcher=is_here))
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
    what, why = (
        f"py_version is {version!r}",
        f"{names[0]} is left out, so the job uses the sagemaker-dist image, whose Python is fixed",
    )
    hint = f"Leave py_version out, or pass {names[0]} too for SageMaker's image"
    return [OptionError(what, why, hint, "py_version", kind="no_effect")]


def _use_new_names(kwargs: dict[str, Any]) -> None:
    for old, new in _RENAMED.items():
        if old in kwargs:
            renamed_kwargs(old, new, None, kwargs)  # warns as the SDK does
            del kwargs[old]


def _set_defaults(kwargs: dict[str, Any], parsed: Distribution, is_local: bool) -> None:
    """Add defaults to `kwargs`, the constructor's arguments, which are changed in place.

    A local job gets a session and a role. For jobs in the sagemaker-dist image, the SDK's debugger
    and profiler are turned off, because the image does not have them. `parsed` is the parsed
    distribution.
    """
    if "instance_count" in kwargs:
        kwargs["instance_count"] = plain_count(kwargs["instance_count"])
    if is_local:
        kwargs["instance_type"] = LOCAL_PROCESS  # the SDK's "local_gpu" allows one host only
        kwargs["sagemaker_session"] = kwargs.get("sagemaker_session") or LocalSession()
        kwargs["role"] = kwargs.get("role") or ROLE
    if parsed.is_launched:
        kwargs["metric_definitions"] = add_runtime_metrics(kwargs.get("metric_definitions"))
        kwargs.setdefault("enable_sagemaker_metrics", True)
    if parsed.is_launched or is_local:
        kwargs.setdefault("debugger_hook_config", False)
        if kwargs.get("profiler_config") is None:
            kwargs.setdefault("disable_profiler", True)


@contextmanager
def _without_aws(kwargs: dict[str, Any]) -> Iterator[None]:
    session: LocalSession = kwargs["sagemaker_session"]
    with offline(), session.without_defaults():
        yield


def _session_of(name: str) -> LocalSession | None:
    """Return a session for the job `name` of this machine; None if the job may be on SageMaker.

    Raises:
        JobError: This machine has no job of this name, and no AWS region is set.
    """
    runner = LocalRunner()
    if runner.exists(name):
        return LocalSession(runner=runner)
    if boto3.Session().region_name is None:
        raise JobError(
            f"there is no job {name!r}",
            f"{runner.root} has no job of this name, and no AWS region is set",
            "Check the name, or set AWS_DEFAULT_REGION",
            about="job_name",
            kind="not_found",
        )
    return None
