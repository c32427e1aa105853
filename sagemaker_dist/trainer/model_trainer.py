# SPDX-License-Identifier: Apache-2.0
"""SageMaker's `ModelTrainer` with checks that run before a job starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sagemaker_dist.errors import OptionError, raise_all
from sagemaker_dist.gathering import add_runtime_metrics
from sagemaker_dist.packaging import remote_gpu_faults
from sagemaker_dist.planning import transport_warning, without_consequences
from sagemaker_dist.trainer.model_trainer_sdk import find_sdk
from sagemaker_dist.trainer.trainer_budget import trainer_budget
from sagemaker_dist.trainer.trainer_checks import job_of, training_faults
from sagemaker_dist.trainer.trainer_config import DataParallelConfig
from sagemaker_dist.trainer.trainer_facts import training_of

if TYPE_CHECKING:
    from sagemaker.train.model_trainer import MetricDefinition
    from sagemaker.train.model_trainer import ModelTrainer as SageMakerModelTrainer
else:
    MetricDefinition = find_sdk()[0].MetricDefinition
    SageMakerModelTrainer = find_sdk()[0].ModelTrainer


def check(trainer: Any, inputs: Any = None, *, wait: bool = True) -> None:
    """Check the job that `trainer.train(inputs, wait)` would start; nothing is started.

    For some instance types, such as those with GPUs, a UserWarning describes how gradients will be
    sent.

    Args:
        trainer: ModelTrainer, of SageMaker or of this package.
        inputs: Input data that would be passed to `train`.
        wait: Value of `wait` that would be passed to `train`.

    Raises:
        OptionError: The job has faults; all of them are reported together.
    """
    training = training_of(trainer, inputs, waits=wait)
    raise_all(without_consequences([*training_faults(training), *_budget_faults(trainer)]))
    warning = transport_warning(job_of(training))
    if warning is not None:
        warnings.warn(warning, UserWarning, stacklevel=2)


def _budget_faults(trainer: Any) -> Iterator[OptionError]:
    try:
        trainer_budget(trainer)
    except OptionError as error:
        yield error


class ModelTrainer(SageMakerModelTrainer):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's ModelTrainer, with checks when it is created and when `train` is called.

    With `distributed=DataParallelConfig()`, metric definitions are added to each job, so that
    SageMaker finds the metrics that the smdist runtime prints.

    Attributes:
        max_cost: Most that a job may cost, in US dollars. `train` lowers the time limit of
            stopping_condition to what this pays for. Default: no limit.
        price_per_hour: Price of one host in US dollars per hour. Default: the known price of the
            instance type.

    Raises:
        pydantic.ValidationError: An argument is wrong; all faults are reported together.
    """

    max_cost: float | None = None
    price_per_hour: float | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Check the job, then initialize SageMaker's class; only the second step calls AWS."""
        check(self)
        super().model_post_init(context)
        self.with_metric_definitions(None)

    def with_metric_definitions(self, metric_definitions: Any) -> Any:
        """Set the metric definitions of the jobs that `train` starts, and return this ModelTrainer.

        With distributed=DataParallelConfig(), definitions are added for the metrics that the smdist
        runtime prints. Pass an empty list to have no definitions.
        """
        if isinstance(self.distributed, DataParallelConfig) and metric_definitions != []:
            given = [{"Name": each.name, "Regex": each.regex} for each in metric_definitions or ()]
            metric_definitions = [
                MetricDefinition(name=each["Name"], regex=each["Regex"])
                for each in add_runtime_metrics(given or None)
            ]
        return super().with_metric_definitions(metric_definitions)

    def train(
        self,
        input_data_config: Any = None,
        wait: bool = True,
        logs: bool = True,
        **further: Any,
    ) -> Any:
        """Check the job, and start it as SageMaker's `ModelTrainer.train` does.

        `further` are other arguments of SageMaker's `train`, which gets them unchanged.

        Raises:
            OptionError: The job has faults; all of them are reported together.
        """
        training = training_of(self, input_data_config, waits=wait)
        raise_all(without_consequences([*training_faults(training), *_budget_faults(self)]))
        if training.image is not None and isinstance(training.instance_type, str):
            boto = self.sagemaker_session.boto_session
            raise_all(remote_gpu_faults(boto, training.image, [training.instance_type]))
        with self._within_budget():
            return super().train(input_data_config, wait, logs, **further)

    @contextmanager
    def _within_budget(self) -> Iterator[None]:
        """Set the time limit and the environment that follow from max_cost, in a `with` block."""
        trainer: Any = self  # SageMaker's SDK is untyped
        budget = trainer_budget(trainer)
        if budget is None:
            yield
            return
        before = trainer.stopping_condition, trainer.environment
        limit = trainer.stopping_condition.max_runtime_in_seconds
        print(budget.line(limit))  # noqa: T201 - for the user at the terminal
        change = {"max_runtime_in_seconds": budget.limit(limit)}
        trainer.stopping_condition = trainer.stopping_condition.model_copy(update=change)
        trainer.environment = {**(trainer.environment or {}), **budget.environment}
        try:
            yield
        finally:
            trainer.stopping_condition, trainer.environment = before
