# SPDX-License-Identifier: Apache-2.0
"""`PyTorch` as SageMaker's SDK v2 has it, plus our distribution and our local modes.

    PyTorch(..., distribution=DataParallel())         our runtime starts the ranks
    PyTorch(..., instance_type="local_process")       hosts are processes of this machine
    PyTorch(..., instance_type="local")               hosts are containers of its Docker engine

Everything else is the parent's: our keys are taken out of `distribution`
before the parent sees it, and come back as one hyperparameter.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from sagemaker.estimator import EstimatorBase
from sagemaker.local import LocalSession as SageMakerLocalSession
from sagemaker.pytorch import PyTorch as SageMakerPyTorch

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
from sagemaker_dist.errors import OptionError, raise_all
from sagemaker_dist.estimators import facts
from sagemaker_dist.estimators.local_session import ROLE, LocalClient, LocalSession
from sagemaker_dist.estimators.sdk import offline, quiet
from sagemaker_dist.packaging import FRAMEWORKS, default_tag, ecr_image
from sagemaker_dist.planning import Job, LocalSource, construction_faults, fit_faults, gpu_warning
from sagemaker_dist.planning.faults import JOB_NAME, source_faults
from sagemaker_dist.planning.local_faults import CONTAINER_ONLY, NO_EFFECT
from sagemaker_dist.planning.local_job import PROGRAM
from sagemaker_dist.planning.locations import FILE
from sagemaker_dist.runners import LocalRunner

FRAMEWORK: Final = "torch"
_NO_IMAGE: Final = "pytorch-training:local_process"  # gives jobs their usual name
_CHECKPOINTS: Final = "SM_CHECKPOINT_DIR"
_OTHER: Final = (
    "instance_groups",
    "training_recipe",
    "compiler_config",
    "use_spot_instances",
    *CONTAINER_ONLY,
    *NO_EFFECT,
)


class PyTorch(SageMakerPyTorch):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's PyTorch estimator with our distribution and our local modes.

    Takes what `sagemaker.pytorch.PyTorch` takes, and besides:

    * `distribution`: `DataParallel(...)`, or a dict that names "smdist" or
      AWS's "smdistributed" data parallelism.
    * `instance_type="local_process"`: every host is a process of this machine;
      needs no image, role, credentials, region or network. Output and
      checkpoints are file:// directories, data is file:// or s3://.
    * `instance_type="local"` or `"local_gpu"`: every host is a container of this
      machine's Docker engine, any number of them; the same otherwise. With a
      LocalSession of SageMaker's own, its local mode runs the job instead.
    * `image_uri`: with our distribution, or in our local modes without a
      framework_version, defaults to the image of `sagemaker-dist image build`.

    Raises:
        OptionError: The request is wrong; every fault is reported at once.
    """

    def __init__(
        self,
        entry_point: Any = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: Any = None,
        hyperparameters: dict[str, Any] | None = None,
        image_uri: Any = None,
        distribution: DataParallel | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = {"entry_point": entry_point, "source_dir": source_dir, "image_uri": image_uri}
        given["framework_version"] = framework_version
        asked = self._check(distribution, {**given, **kwargs})
        instance_type = kwargs.get("instance_type")
        is_local = _runs_here(instance_type, kwargs.get("sagemaker_session"))
        self._finds_image = image_uri is None and not (asked.ours is None and framework_version)
        needs_image = (is_local or asked.ours is not None) and self._finds_image
        _set_defaults(kwargs, asked, is_local)
        with quiet(), _cut_off(kwargs) if is_local else nullcontext():
            super().__init__(
                entry_point,
                framework_version,
                py_version,
                source_dir,
                hyperparameters,
                _NO_IMAGE if needs_image else image_uri,
                asked.rest or None,
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
            asked = read_distribution(distribution)
        except OptionError as error:
            faults.append(error)
        job = _job(type(self), asked, given)
        faults += construction_faults(job)
        if faults:
            source = (given.get(name) for name in ("entry_point", "source_dir", "git_config"))
            raise_all([*faults, *source_faults(facts.source(*source))])
        warning = gpu_warning(job)
        if warning:
            warnings.warn(warning, UserWarning, stacklevel=3)
        return asked

    @property
    def _is_local(self) -> bool:
        return _runs_here(self.instance_type, self.sagemaker_session)

    def training_image_uri(self, region: str | None = None) -> Any:
        """The image of the job; local processes have none.

        Raises:
            SetupError: None is named and none was built or pushed.
            SkewError: None is named, and those that were pushed are of other versions.
        """
        if self.image_uri is not None:
            return self.image_uri
        if self.instance_type == LOCAL_PROCESS:
            return _NO_IMAGE
        if not self._finds_image or (self._wire is None and not self._is_local):
            return super().training_image_uri(region)
        if self.instance_type in LOCAL:
            return default_tag(FRAMEWORK)
        return ecr_image(self.sagemaker_session.boto_session, FRAMEWORK)

    def hyperparameters(self) -> dict[str, Any]:
        """The parent's, and the options of our distribution."""
        values: dict[str, Any] = super().hyperparameters()
        if self._wire is not None:
            values.update(EstimatorBase._json_encode_hyperparameters({KEY: self._wire}))
        if self._script is not None:
            values[PROGRAM] = json.dumps(self._script)
        return values

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
        inputs = facts.as_uris(inputs) if self._is_local else inputs
        raise_all(fit_faults(self._fit_job(inputs, job_name)))
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
        cls,
        training_job_name: str,
        sagemaker_session: Any = None,
        model_channel_name: str = "model",
    ) -> PyTorch:
        """An estimator of a job by its name; without a session, local jobs are looked at first."""
        if sagemaker_session is None and JOB_NAME.fullmatch(training_job_name):
            runner = LocalRunner()
            if runner.exists(training_job_name):
                sagemaker_session = LocalSession(runner=runner)
        attached: PyTorch = super().attach(training_job_name, sagemaker_session, model_channel_name)
        return attached

    def _prepare_for_training(self, job_name: str | None = None) -> None:
        super()._prepare_for_training(job_name=job_name)
        path: Any = self.checkpoint_local_path  # SageMaker tells its place to nobody in the job
        if self._wire is not None and path:
            given = self.environment  # type: ignore[has-type]  # SageMaker's SDK is untyped
            self.environment = {_CHECKPOINTS: path, **(given or {})}

    def _fit_job(self, inputs: Any, job_name: Any) -> Job:
        runner = getattr(self.sagemaker_session, "runner", None)
        return Job(
            distribution=Distribution(ours=parse(self._wire) if self._wire else None),
            instance_type=facts.settled(self.instance_type),
            instance_count=facts.settled(self.instance_count),
            job_name=facts.settled(job_name),
            job_exists=bool(runner and job_name and runner.exists(job_name)),
            source=facts.source(
                self.entry_point,
                self.source_dir,
                self.git_config,
                is_launched=self._is_local or self._wire is not None,
            ),
            channels=facts.channels(
                inputs,
                input_mode=self.input_mode,
                file_systems=getattr(self.sagemaker_session, "file_systems", None),
            )
            + facts.model_channel(self.model_channel_name, self.model_uri),
        )

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
        """The parent's attributes as its local mode wants them; they come back as they were.

        Its local mode drops the folder of an entry point, knows neither
        dependencies nor checkpoints, and changes what the user set.
        """
        names = ("source_dir", "entry_point", "checkpoint_s3_uri", "checkpoint_local_path")
        before = {name: getattr(self, name) for name in names}
        extra = {name: before[name] for name in names[2:] if before[name]}
        if not self.git_config:
            source = self._local_source()
            self._script = str(before["entry_point"]) if source.only is None else None
            self.source_dir = str(source.folder)
            self.entry_point = source.only or before["entry_point"]
            extra["source"] = source
        self.checkpoint_s3_uri = self.checkpoint_local_path = None
        try:
            yield extra
        finally:
            self._script = None
            for name, value in before.items():
                setattr(self, name, value)

    def _local_source(self) -> LocalSource:
        """The code that SageMaker's SDK would upload: without source_dir, the script alone."""
        directory: Any = self.source_dir
        script = Path(self.entry_point).absolute()
        return LocalSource(
            folder=Path(directory).absolute() if directory else script.parent,
            only=None if directory else script.name,
            dependencies=tuple(Path(each).absolute() for each in self.dependencies),
        )

    @classmethod
    def _prepare_init_params_from_job_description(
        cls, job_details: dict[str, Any], model_channel_name: str | None = None
    ) -> dict[str, Any]:
        """What `attach` builds an estimator of: with our distribution, as it was given."""
        params: dict[str, Any] = super()._prepare_init_params_from_job_description(
            job_details, model_channel_name
        )
        wire = params["hyperparameters"].pop(KEY, None)
        if wire is not None:
            params["distribution"] = parse(wire)
        if params["instance_type"] in {LOCAL_PROCESS, *LOCAL}:
            params.update(_source_params(params, job_details))
            checkpoint = job_details.get("CheckpointConfig", {})
            params["checkpoint_s3_uri"] = checkpoint.get("S3Uri")
            params["checkpoint_local_path"] = checkpoint.get("LocalPath")
            params["image_uri"] = _image(job_details)
        return params


def _job(estimator: type, asked: Distribution, given: dict[str, Any]) -> Job:
    valid = facts.known_arguments(estimator)
    instance_type = facts.settled(given.get("instance_type", given.get("train_instance_type")))
    names = ("output_path", "checkpoint_s3_uri", "checkpoint_local_path", "base_job_name")
    session, has_image = given.get("sagemaker_session"), given["image_uri"] is not None
    places = {name: facts.obstacle(given.get(name)) for name in names[:2]}
    return Job(
        distribution=asked,
        instance_type=instance_type,
        known_to_boto3=facts.is_known_to_boto3(instance_type),
        framework_version=None if has_image else facts.settled(given["framework_version"]),
        image_version=FRAMEWORKS[FRAMEWORK].default,
        own_session=isinstance(session, (LocalSession, type(None))),
        local_session=isinstance(session, (SageMakerLocalSession, type(None))),
        obstacles={name: obstacle for name, obstacle in places.items() if obstacle},
        environment=facts.environment(given.get("environment")),
        other={name: given.get(name) for name in _OTHER},
        keeps_checkpoints=bool(given.get("checkpoint_s3_uri")),
        unknown=tuple(name for name in given if name not in valid),
        valid=valid,
        **{name: facts.settled(given.get(name)) for name in names},
    )


def _runs_here(instance_type: Any, session: Any) -> bool:
    """Whether our own runner runs the job; with a LocalSession of its own, SageMaker's SDK does."""
    is_container = instance_type in LOCAL and isinstance(session, (LocalSession, type(None)))
    return bool(instance_type == LOCAL_PROCESS or is_container)


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


def _source_params(params: dict[str, Any], job_details: dict[str, Any]) -> dict[str, Any]:
    """The arguments that name the code of a job of local processes."""
    source = LocalSource.parse(job_details.get("LocalSource"))
    if source is None:
        return {"source_dir": params["source_dir"].removeprefix(FILE)}
    named = {"dependencies": [str(each) for each in source.dependencies]}
    if source.only is not None:
        return {**named, "source_dir": None, "entry_point": str(source.folder / source.only)}
    return {**named, "source_dir": str(source.folder)}


def _image(job_details: dict[str, Any]) -> str | None:
    image: str = job_details["AlgorithmSpecification"]["TrainingImage"]
    return None if image == _NO_IMAGE else image
