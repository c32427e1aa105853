# SPDX-License-Identifier: Apache-2.0
"""SageMaker's ModelTrainer, and what would go wrong with it said before anything starts."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from sagemaker_dist.errors import raise_all
from sagemaker_dist.gathering import with_our_metrics
from sagemaker_dist.planning import travel_warning
from sagemaker_dist.trainer.config import DataParallelConfig
from sagemaker_dist.trainer.facts import training_of
from sagemaker_dist.trainer.faults import job_of, training_faults
from sagemaker_dist.trainer.sdk import find_sdk

if TYPE_CHECKING:
    from sagemaker.train.model_trainer import MetricDefinition
    from sagemaker.train.model_trainer import ModelTrainer as SageMakerModelTrainer
else:
    MetricDefinition = find_sdk()[0].MetricDefinition
    SageMakerModelTrainer = find_sdk()[0].ModelTrainer


def check(trainer: Any, inputs: Any = None, *, wait: bool = True) -> None:
    """Check what `trainer.train(inputs, wait)` would run; starts nothing and asks nobody.

    Raises:
        OptionError: The request is wrong; every fault is reported at once.
    """
    training = training_of(trainer, inputs, waits=wait)
    raise_all(training_faults(training))
    warning = travel_warning(job_of(training))
    if warning is not None:
        warnings.warn(warning, UserWarning, stacklevel=2)


class ModelTrainer(SageMakerModelTrainer):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's ModelTrainer, with `check` when it is built and when it trains.

    With `distributed=DataParallelConfig()` its jobs have our metric definitions as well.

    Raises:
        pydantic.ValidationError: The request is wrong; every fault is reported.
    """

    def model_post_init(self, context: Any, /) -> None:
        """Before the SDK looks at it, and at AWS."""
        check(self)
        super().model_post_init(context)
        self.with_metric_definitions(None)

    def with_metric_definitions(self, metric_definitions: Any) -> Any:
        """As SageMaker's; ours of other names come with them where the ranks are ours."""
        if isinstance(self.distributed, DataParallelConfig) and metric_definitions != []:
            given = [{"Name": each.name, "Regex": each.regex} for each in metric_definitions or ()]
            metric_definitions = [
                MetricDefinition(name=each["Name"], regex=each["Regex"])
                for each in with_our_metrics(given or None)
            ]
        return super().with_metric_definitions(metric_definitions)

    def train(
        self,
        input_data_config: Any = None,
        wait: bool = True,
        logs: bool = True,
        **further: Any,
    ) -> Any:
        """Train. Everything that can be checked is checked before anything starts.

        Raises:
            OptionError: The request is wrong; every fault is reported at once.
        """
        raise_all(training_faults(training_of(self, input_data_config, waits=wait)))
        return super().train(input_data_config, wait, logs, **further)
