# SPDX-License-Identifier: Apache-2.0
"""`PyTorch` as SageMaker's SDK v2 has it, plus our distribution and `local_process`.

    PyTorch(..., distribution=DataParallel())         our runtime starts the ranks
    PyTorch(..., instance_type="local_process")       hosts are processes of this machine

Everything else is the parent's: our keys are taken out of `distribution`
before the parent sees it, and come back as one hyperparameter.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from sagemaker.estimator import EstimatorBase
from sagemaker.pytorch import PyTorch as SageMakerPyTorch

from sagemaker_dist.catalog import LOCAL_PROCESS
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
from sagemaker_dist.estimators.process_session import ROLE, ProcessSession
from sagemaker_dist.estimators.sdk import offline, quiet
from sagemaker_dist.planning import Job, construction_faults, fit_faults, gpu_warning
from sagemaker_dist.planning.faults import source_faults
from sagemaker_dist.planning.local_job import PROGRAM
from sagemaker_dist.planning.locations import FILE

_NO_IMAGE: Final = "pytorch-training:local_process"  # gives jobs their usual name
_OTHER: Final = ("instance_groups", "training_recipe", "compiler_config", "use_spot_instances")


class PyTorch(SageMakerPyTorch):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's PyTorch estimator with our distribution and local processes.

    Takes what `sagemaker.pytorch.PyTorch` takes, and besides:

    * `distribution`: `DataParallel(...)`, or a dict that names "smdist" or
      AWS's "smdistributed" data parallelism.
    * `instance_type="local_process"`: every host is a process of this machine;
      needs no image, role, credentials, region or network. Data, output and
      checkpoints are file:// directories.

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
        asked = self._check(distribution, {**given, **kwargs})
        is_local = kwargs.get("instance_type") == LOCAL_PROCESS
        _set_defaults(kwargs, asked, is_local)
        with quiet(), _cut_off(kwargs) if is_local else nullcontext():
            super().__init__(
                entry_point,
                framework_version,
                py_version,
                source_dir,
                hyperparameters,
                _NO_IMAGE if is_local and image_uri is None else image_uri,
                asked.rest or None,
                **kwargs,
            )
        self.image_uri = image_uri
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
    def _is_local_process(self) -> bool:
        return bool(self.instance_type == LOCAL_PROCESS)

    def training_image_uri(self, region: str | None = None) -> Any:
        """The image of the job; local processes have none."""
        if self._is_local_process:
            return self.image_uri or _NO_IMAGE
        return super().training_image_uri(region)

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
        raise_all(fit_faults(self._fit_job(inputs, job_name)))
        if not self._is_local_process:
            return super().fit(inputs, wait, logs, job_name, experiment_config)
        self._start_locally(inputs, wait, job_name, experiment_config)
        if wait:
            self._attend(logs)
        return None

    def _fit_job(self, inputs: Any, job_name: Any) -> Job:
        runner = getattr(self.sagemaker_session, "runner", None)
        return Job(
            instance_type=facts.settled(self.instance_type),
            instance_count=facts.settled(self.instance_count),
            job_name=facts.settled(job_name),
            job_exists=bool(runner and job_name and runner.exists(job_name)),
            source=facts.source(self.entry_point, self.source_dir, self.git_config),
            channels=facts.channels(inputs),
        )

    def _start_locally(
        self, inputs: Any, wait: bool, job_name: str | None, experiment_config: Any
    ) -> None:
        session, before = self.sagemaker_session, self.latest_training_job
        with self._laid_out() as extra, session.starting(attended=wait, **extra) as client, quiet():
            super().fit(_as_strings(inputs), False, "None", job_name, experiment_config)
        if self.latest_training_job is before:  # the parent swallows an interrupt
            if client.started:
                session.abandon(client.started)
            raise KeyboardInterrupt

    def _attend(self, logs: Any) -> None:
        session, name = self.sagemaker_session, self.latest_training_job.name
        try:
            self.latest_training_job.wait(logs=logs)
        except KeyboardInterrupt:
            session.abandon(name)
            raise
        finally:
            session.runner.release(name)

    @contextmanager
    def _laid_out(self) -> Iterator[dict[str, Any]]:
        """The parent's attributes as its local mode wants them; they come back as they were.

        Its local mode drops the folder of an entry point, knows neither
        dependencies nor checkpoints, and changes what the user set.
        """
        names = ("source_dir", "entry_point", "checkpoint_s3_uri", "checkpoint_local_path")
        before = {name: getattr(self, name) for name in names}
        if not self.git_config:
            self._script = before["entry_point"] if before["source_dir"] else None
            self.source_dir = _source_folder(before["source_dir"], before["entry_point"])
        self.checkpoint_s3_uri = self.checkpoint_local_path = None
        extra = {name: before[name] for name in names[2:] if before[name]}
        try:
            yield {**extra, "environment": self._environment()}
        finally:
            self._script = None
            for name, value in before.items():
                setattr(self, name, value)

    def _environment(self) -> dict[str, str] | None:
        folders = dict.fromkeys(str(Path(each).absolute().parent) for each in self.dependencies)
        if not folders:
            return self.environment  # type: ignore[no-any-return]  # SageMaker's SDK is untyped
        given = self.environment or {}
        paths = [*filter(None, [given.get("PYTHONPATH")]), *folders]
        return {**given, "PYTHONPATH": os.pathsep.join(paths)}

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
        if params["instance_type"] == LOCAL_PROCESS:
            params["source_dir"] = params["source_dir"].removeprefix(FILE)
            checkpoint = job_details.get("CheckpointConfig", {})
            params["checkpoint_s3_uri"] = checkpoint.get("S3Uri")
            params["checkpoint_local_path"] = checkpoint.get("LocalPath")
            params["image_uri"] = _image(job_details)
        return params


def _job(estimator: type, asked: Distribution, given: dict[str, Any]) -> Job:
    valid = facts.known_arguments(estimator)
    instance_type = facts.settled(given.get("instance_type", given.get("train_instance_type")))
    names = ("output_path", "checkpoint_s3_uri", "checkpoint_local_path")
    return Job(
        distribution=asked,
        instance_type=instance_type,
        known_to_boto3=facts.is_known_to_boto3(instance_type),
        own_session=isinstance(given.get("sagemaker_session"), (ProcessSession, type(None))),
        has_image=given["image_uri"] is not None or "image_name" in given,
        other={name: given.get(name) for name in _OTHER},
        unknown=tuple(name for name in given if name not in valid),
        valid=valid,
        **{name: facts.settled(given.get(name)) for name in names},
    )


def _set_defaults(kwargs: dict[str, Any], asked: Distribution, is_local: bool) -> None:
    """Leave out what the parent adds to every job but our image does not hold."""
    if is_local:
        kwargs["sagemaker_session"] = kwargs.get("sagemaker_session") or ProcessSession()
        kwargs["role"] = kwargs.get("role") or ROLE
    if asked.ours is not None or is_local:
        kwargs.setdefault("debugger_hook_config", False)
        if kwargs.get("profiler_config") is None:
            kwargs.setdefault("disable_profiler", True)


@contextmanager
def _cut_off(kwargs: dict[str, Any]) -> Iterator[None]:
    session: ProcessSession = kwargs["sagemaker_session"]
    with offline(), session.without_defaults():
        yield


def _source_folder(source_dir: str | None, entry_point: str) -> str:
    return str((Path(source_dir) if source_dir else Path(entry_point).parent).absolute())


def _as_strings(inputs: Any) -> Any:
    if isinstance(inputs, Path):
        return str(inputs)
    return inputs


def _image(job_details: dict[str, Any]) -> str | None:
    image: str = job_details["AlgorithmSpecification"]["TrainingImage"]
    return None if image == _NO_IMAGE else image
