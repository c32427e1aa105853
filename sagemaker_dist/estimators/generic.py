# SPDX-License-Identifier: Apache-2.0
"""`Estimator` of SageMaker's SDK v2 for any image, with sagemaker-dist's additions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any, Final

from sagemaker.estimator import Estimator as SageMakerEstimator

from sagemaker_dist.catalog import LOCAL_PROCESS
from sagemaker_dist.contract import Distribution
from sagemaker_dist.contract.aws_distributions import Strategy
from sagemaker_dist.errors import OptionError
from sagemaker_dist.estimators.distributed import Distributed
from sagemaker_dist.planning.local_job import PROGRAM

_PARENTS: Final = signature(SageMakerEstimator.__init__)


class Estimator(Distributed, SageMakerEstimator):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's generic estimator with the distributions and local modes of sagemaker-dist.

    Takes the arguments of `sagemaker.estimator.Estimator`, in the same order, and in addition:

    * `distribution`: a distribution that the sagemaker-dist launcher can start; the image must have
      sagemaker-dist-runtime. Others are refused, because the SDK's Estimator ignores them.
    * `instance_type`: "local_process" runs each host of the job as a process of this machine;
      "local" and "local_gpu" run each host as a container. Only "local_process" works without
      image_uri. Containers run the image's own program if no entry_point is given.

    Raises:
        OptionError: The request is wrong; all faults are reported together.
    """

    kind = "Estimator"
    names_image = ()
    stem = "training-job"
    configures = None

    def __init__(
        self,
        image_uri: Any = None,
        role: str | None = None,
        instance_count: Any = None,
        instance_type: Any = None,
        *args: Any,
        distribution: Strategy | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        first = (image_uri, role, instance_count, instance_type)
        given = _PARENTS.bind_partial(self, *first, *args, **kwargs).arguments
        named = {name: given[name] for name in given if name not in {"self", "kwargs"}}
        super().__init__(distribution=distribution, **named, **given.get("kwargs", {}))

    def _runs_our_launcher(self, distribution: Distribution, given: Mapping[str, Any]) -> bool:  # noqa: ARG002 - not needed
        """Return True: only the sagemaker-dist launcher can start ranks of a generic Estimator."""
        return True

    def _faults(
        self, distribution: Distribution, given: Mapping[str, Any]
    ) -> Iterator[OptionError]:
        if given.get("image_uri") is None and given["instance_type"] != LOCAL_PROCESS:
            yield OptionError(
                "image_uri is left out",
                "a generic estimator has no default image",
                "Pass image_uri, or use PyTorch",
                "image_uri",
                kind="missing",
            )
        yield from _script_faults(distribution, given)

    @classmethod
    def _prepare_init_params_from_job_description(
        cls, job_details: dict[str, Any], model_channel_name: str | None = None
    ) -> dict[str, Any]:
        params: dict[str, Any] = super()._prepare_init_params_from_job_description(
            job_details, model_channel_name
        )
        if "source_dir" in params:  # a local job; its code was not uploaded
            values = params["hyperparameters"]
            params.setdefault("entry_point", json.loads(values[PROGRAM]))
            if params["source_dir"]:  # the SDK's Estimator will encode them again
                params["hyperparameters"] = {key: json.loads(values[key]) for key in values}
        return params


def _script_faults(distribution: Distribution, given: Mapping[str, Any]) -> Iterator[OptionError]:
    if given.get("entry_point") is not None:
        return
    for name in ("source_dir", "dependencies"):
        if given.get(name):
            yield OptionError(
                f"{name} is set without entry_point",
                f"{name} does not name the script to run",
                f"Pass entry_point, or leave {name} out",
                name,
                kind="missing",
            )
    has_image = given["instance_type"] != LOCAL_PROCESS
    values = given.get("hyperparameters")
    names_script = isinstance(values, Mapping) and PROGRAM in values
    if not names_script and (distribution.is_launched or not has_image):
        own = f", or name a script in the image's /opt/ml/code by the hyperparameter {PROGRAM}"
        yield OptionError(
            "entry_point is left out",
            "the launcher of sagemaker_dist runs a script",
            f"Pass the path of the script{own if has_image else ''}",
            "entry_point",
            kind="missing",
        )
