# SPDX-License-Identifier: Apache-2.0
"""`TrainingJob`: a training job on SageMaker, or on this machine in containers or processes.

    job = TrainingJob(entry_point="train.py", role="training", instance_type="ml.c5.9xlarge",
                      instance_count=2, distribution=DataParallel(), inputs="s3://bucket/data")
    job.submit()
    job.wait()

AWS is called only for values that the options do not give. If `role` is an ARN, and `image_uri` and
`output_path` are given, `request()` makes no call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract.launch_contract import launch_parameters
from sagemaker_dist.errors import JobError, OptionError, SetupError, raise_all
from sagemaker_dist.gathering import add_runtime_metrics, plain_count
from sagemaker_dist.jobs.job_checks import (
    budget_of_job,
    distribution_of_job,
    is_local,
    job_faults,
    job_to_check,
)
from sagemaker_dist.jobs.type_checks import framework_warnings, session_faults
from sagemaker_dist.packaging import (
    account_of,
    boto_session,
    default_tag,
    ecr_image,
    remote_gpu_faults,
    role_arn,
    source_tarball,
    upload_secret,
    upload_source,
)
from sagemaker_dist.packaging.code_tarball import TARBALL, digest_of
from sagemaker_dist.planning import (
    Budget,
    LocalSource,
    construction_warnings,
    directory_of,
    plan_local_job,
)
from sagemaker_dist.planning.local_job import REGION
from sagemaker_dist.planning.request import Resolved, TrainingOptions, training_request
from sagemaker_dist.runners import LocalRunner, Runner
from sagemaker_dist.runners.protocol import ROOT_CAUSE, Description
from sagemaker_dist.runners.viewer import watch

_OPTIONS: Final = str(TrainingOptions.__doc__).partition("    Attributes:\n")[2]
_ROLE: Final = "arn:aws:iam::000000000000:role/local"  # a placeholder: local jobs need no role
_NO_IMAGE: Final = ":local_process"
_LONGEST: Final = 63


@dataclass(frozen=True, kw_only=True)
class TrainingJob(TrainingOptions):
    """One training job, without SageMaker's SDK.

    The options have the same names and defaults as the arguments of the SDK's estimators.

    Attributes:
        session: boto3.Session. Default: boto3's own settings.
        runner: Runner of the job. Default: SageMaker, or this machine for local instance types.

    Raises:
        OptionError: Options of the job are wrong; all faults are reported together.
    """

    session: Any = field(default=None, repr=False, compare=False)
    runner: Runner | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, empty in (("hyperparameters", {}), ("environment", {}), ("dependencies", ())):
            if getattr(self, name) is None:
                object.__setattr__(self, name, empty)
        object.__setattr__(self, "instance_count", plain_count(self.instance_count))
        self.validate()

    def validate(self) -> None:
        """Check all options, as far as that is possible without calls to AWS or Docker.

        Raises:
            OptionError: Options of the job are wrong; all faults are reported together.
        """
        raise_all(session_faults(self.session))
        raise_all(job_faults(self, region=getattr(self.session, "region_name", None)))

    def warnings(self) -> list[str]:
        """Return warnings for the user, such as about slow transport of gradients, if any."""
        return [*framework_warnings(self), *construction_warnings(job_to_check(self))]

    @property
    def cost_limit(self) -> str:
        """Time limit that follows from `max_cost`, as a sentence; "" without this option."""
        budget = self._budget
        return "" if budget is None else budget.line(self.max_run)

    @property
    def _budget(self) -> Budget | None:
        return budget_of_job(self, region=getattr(self.session, "region_name", None))

    @cached_property
    def name(self) -> str:
        """Name of the job: `job_name` or, without it, "<base_job_name>-<time>".

        The time is when this attribute is first read, in UTC. The default of base_job_name is
        "<framework>-training".
        """
        if self.job_name is not None:
            return self.job_name
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%d-%H-%M-%S-%f")[:-3]
        base = self.base_job_name or f"{self.framework}-training"
        return f"{base[: _LONGEST - len(stamp) - 1].rstrip('-')}-{stamp}"

    def request(self) -> dict[str, Any]:
        """Return the arguments of CreateTrainingJob for this job; nothing is started.

        They have the S3 URI of the code, which depends on the content of its files.

        Raises:
            SetupError: AWS refuses a call, no region is set, or a file of the code cannot be read.
            SkewError: The pushed images have other versions than this package.
        """
        with self._packed() as tarball:
            return self._request(self._code(tarball))

    def _code_uri(self) -> str | None:
        """Return the URI of the job's code, or None if the job has none; nothing is uploaded.

        Raises:
            SetupError: A file of the code cannot be read, or the URI needs AWS, which refuses.
        """
        with self._packed() as tarball:
            return self._code(tarball)

    def _request(self, code: str | None) -> dict[str, Any]:
        request = training_request(self, replace(self._resolved, code=code))
        if is_local(self) and self._source is not None:
            request["LocalSource"] = self._source.request()
        return request

    def submit(self) -> str:
        """Upload the code, start the job, and return its name without waiting for its end.

        A second call only returns the name.

        Raises:
            OptionError: SageMaker refuses the request, or another job has the same name.
            SetupError: AWS or this machine cannot run the job.
            JobError: A quota of the account does not allow the job.
        """
        if self.is_started:
            return self.name
        with self._packed() as tarball:
            code = self._code(tarball)
            request = self._request(code)
            if self.job_name is not None and self._runner.exists(self.name):
                raise OptionError(
                    f"job_name is {self.name!r}",
                    "a job of this name exists",
                    "Pass another name, or leave job_name out",
                    about="job_name",
                    kind="conflict",
                )
            raise_all(self._gpu_faults(request))
            if tarball is not None:
                self._upload(tarball, str(code))
        name = self._runner.start(request)
        self.__dict__["_is_started"] = True
        return name

    def _gpu_faults(self, request: Mapping[str, Any]) -> Iterator[OptionError]:
        if is_local(self) or not self._resolved.distribution.is_launched:
            return
        image, resources = self._resolved.image, request["ResourceConfig"]
        groups = resources.get("InstanceGroups", [resources])
        yield from remote_gpu_faults(self._boto, image, [each["InstanceType"] for each in groups])

    @property
    def is_started(self) -> bool:
        """Return whether `submit` of this object has started the job."""
        return bool(self.__dict__.get("_is_started"))

    @contextmanager
    def _packed(self) -> Iterator[Path | None]:
        """Yield the path of a tarball with the code, or None if the job uploads no code."""
        source = self._source
        if source is None or not self._uploads:
            yield None
            return
        script = source.folder / (source.only or str(self.entry_point))
        folder = None if source.only else source.folder
        with source_tarball(script, folder, source.dependencies) as tarball:
            yield tarball

    def _upload(self, tarball: Path, code: str) -> None:
        owner = account_of(self._boto) if self._is_default_bucket else None
        upload_source(self._boto, tarball, code, kms_key=self.output_kms_key, owner=owner)
        if self._resolved.distribution.is_launched:
            upload_secret(self._boto, code, kms_key=self.output_kms_key, owner=owner)

    @property
    def _is_default_bucket(self) -> bool:
        return self.output_path is None and self.code_location is None

    def wait(self, progress: bool = True) -> Description:
        """Wait until the job ends, and return its description (DescribeTrainingJob's answer).

        With `progress`, the output of all hosts is shown. Ctrl-C ends the wait; the job keeps
        running.

        Raises:
            JobError: The job failed, or was not submitted.
        """
        layout = plan_local_job(self._runner.describe(self.name)).layout if is_local(self) else ""
        ended = watch(self._runner, self.name, layout=layout, output=progress)
        if ended["TrainingJobStatus"] == "Failed":
            raise JobError(
                f"training job {self.name!r} failed",
                str(ended.get("FailureReason", "SageMaker gave no reason")).rstrip("."),
                f"Read the output of every host in {self._runner.logs_at(self.name)}",
                cause=ended.get(ROOT_CAUSE, {}),
            )
        return ended

    def logs(self, follow: bool = False) -> Iterator[str]:
        r"""Yield the output of all hosts as lines that end in \n, or in \r for a progress bar.

        With `follow`, continue until the job ends.
        """
        for segment in self._runner.logs(self.name, follow=follow):
            if segment:
                yield segment

    def describe(self) -> Description:
        """Return the state of the job, in the fields of DescribeTrainingJob's answer.

        Raises:
            JobError: The job was not submitted.
        """
        return self._runner.describe(self.name)

    def stop(self) -> None:
        """Request that the job stops, and return without waiting.

        The job's ranks have 120 s to save a checkpoint.
        """
        self._runner.stop(self.name)

    @cached_property
    def _boto(self) -> Any:
        return self.session or boto_session()

    @cached_property
    def _runner(self) -> Runner:
        if self.runner is not None:
            return self.runner
        if is_local(self):
            return LocalRunner()
        from sagemaker_dist.runners import SageMakerRunner

        return SageMakerRunner(self._boto)

    @property
    def has_secret(self) -> bool:
        """True if the ranks get a secret of this job's own, by which they recognize each other.

        The secret lies next to the code that the job uploads. Code that is in S3 already may have
        one too, which is not known here.
        """
        launched = distribution_of_job(self).is_launched
        return launched and (self._uploads or is_local(self))

    @property
    def _uploads(self) -> bool:
        is_there = str(self.source_dir).lower().startswith("s3://")
        return self.entry_point is not None and not is_local(self) and not is_there

    @property
    def _source(self) -> LocalSource | None:
        if self.entry_point is None:
            return None
        script = Path(self.entry_point).absolute()
        folder = None if self.source_dir is None else directory_of(str(self.source_dir))
        return LocalSource(
            folder=script.parent if folder is None else Path(folder).absolute(),
            only=script.name if folder is None else None,
            dependencies=tuple(Path(each).absolute() for each in self.dependencies),
        )

    @cached_property
    def _resolved(self) -> Resolved:
        if not is_local(self) and self._boto.region_name is None:
            raise SetupError(
                "no AWS region is set",
                "a job runs in one region of AWS",
                "Set AWS_DEFAULT_REGION, or pass a session with a region",
                about="session",
                kind="no_region",
            )
        distribution = distribution_of_job(self)
        metrics: Any = self.metric_definitions
        given = None if metrics is None else [dict(each) for each in metrics]
        script = None if self.entry_point is None else Path(self.entry_point)
        return Resolved(
            name=self.name,
            image=self._image(),
            role=_ROLE if is_local(self) else role_arn(self._boto, str(self.role)),
            region=REGION if is_local(self) else str(self._boto.region_name),
            output=self._output(),
            code=None,
            script=None if script is None else str(script if self.source_dir else script.name),
            distribution=distribution,
            parameters=launch_parameters(distribution, self.instance_type, self.framework),
            budget=self._budget,
            metrics=add_runtime_metrics(given) if distribution.is_launched else given,
        )

    def _image(self) -> str:
        if self.image_uri is not None:
            return self.image_uri
        if not is_local(self):
            return ecr_image(self._boto, self.framework)
        is_process = self.instance_type == "local_process"
        return self.framework + _NO_IMAGE if is_process else default_tag(self.framework)

    def _output(self) -> str:
        if self.output_path is not None or is_local(self):
            return self.output_path or ""
        return f"s3://sagemaker-{self._boto.region_name}-{account_of(self._boto)}/"

    def _code(self, tarball: Path | None) -> str | None:
        """Return the URI of the code, or None if the job has none; `tarball` is what is uploaded.

        The URI has a digest of the tarball, so two jobs of one name that are submitted at the same
        time never replace each other's code.
        """
        if self.entry_point is None:
            return None
        source = self._source
        if is_local(self):
            return None if source is None else source.folder.as_uri()
        if tarball is None:
            return str(self.source_dir)
        base = self.code_location or self._resolved.output
        return f"{base.rstrip('/')}/{self.name}/source/{digest_of(tarball)}/{TARBALL}"


TrainingJob.__doc__ = str(TrainingJob.__doc__).replace(
    "    Attributes:\n", f"    Attributes:\n{_OPTIONS.rstrip()}\n"
)
