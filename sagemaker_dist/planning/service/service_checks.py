# SPDX-License-Identifier: Apache-2.0
"""Checks of an estimator's arguments, one by one, by SageMaker's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.service.groups import group_faults
from sagemaker_dist.planning.service.hyperparameter_checks import hyperparameter_faults
from sagemaker_dist.planning.service.labels import metric_faults, tag_faults
from sagemaker_dist.planning.service.limits import (
    entry_count_faults,
    number_faults,
    short_repr,
    text_faults,
)
from sagemaker_dist.planning.service.s3_places import place_faults
from sagemaker_dist.planning.service.stopping import stopping_faults
from sagemaker_dist.planning.service.terms import Terms
from sagemaker_dist.planning.service.vpc_config import network_faults

_TEXTS: Final = (  # name of the argument, shape of the service model, hint
    ("input_mode", "TrainingInputMode", ""),
    ("volume_kms_key", "KmsKeyId", "Pass the id, the ARN or the alias of a key"),
    ("output_kms_key", "KmsKeyId", "Pass the id, the ARN or the alias of a key"),
    ("training_plan", "TrainingPlanArn", "Pass the ARN of a training plan"),
    ("training_repository_access_mode", "TrainingRepositoryAccessMode", ""),
    (
        "training_repository_credentials_provider_arn",
        "TrainingRepositoryCredentialsProviderArn",
        "Pass the ARN of a Lambda function",
    ),
)
_COMMANDS: Final = (
    ("container_entry_point", "TrainingContainerEntrypoint", "TrainingContainerEntrypointString"),
    ("container_arguments", "TrainingContainerArguments", "TrainingContainerArgument"),
)
_ROLE_NAME: Final = re.compile(r"[\w+=,.@-]{1,64}", re.ASCII)  # CreateRole of IAM, 2026-11-21


def service_faults(
    terms: Terms, chosen_groups: Sequence[str], *, has_launcher: bool
) -> Iterator[OptionError]:
    """Yield the faults of arguments that SageMaker would refuse.

    Args:
        terms: Arguments of the job.
        chosen_groups: Names of the instance groups in the distribution.
        has_launcher: True if the sagemaker-dist launcher starts the job. Then hyperparameters that
            request another launcher are faults.
    """
    yield from _role_faults(terms)
    yield from _image_faults(terms)
    for name, shape, hint in _TEXTS:
        yield from text_faults(name, getattr(terms, name), terms.limit(shape), hint=hint)
    for name, shape, entry in _COMMANDS:
        yield from _command_faults(terms, name, shape, entry)
    yield from number_faults(
        "volume_size", terms.volume_size, terms.limit("OptionalVolumeSizeInGB")
    )
    yield from place_faults(terms, "code_location", terms.code_location)
    yield from hyperparameter_faults(terms, has_launcher=has_launcher)
    yield from stopping_faults(terms)
    yield from group_faults(terms, chosen_groups)
    yield from network_faults(terms)
    yield from tag_faults(terms)
    yield from metric_faults(terms)


def _role_faults(terms: Terms) -> Iterator[OptionError]:
    role, limit = terms.role, terms.limit("RoleArn")
    if role is None:
        return
    hint = "Pass the name of a role, or its ARN such as 'arn:aws:iam::123456789012:role/training'"
    if isinstance(role, str) and "/" not in role and not role.startswith("arn:"):
        if not _ROLE_NAME.fullmatch(role):
            why = "the name of a role consists of 1 to 64 letters, digits and any of _+=,.@-"
            yield OptionError(f"role is {short_repr(role)}", why, hint, about="role")
    else:  # SageMaker's SDK treats a text with a slash as an ARN
        yield from text_faults("role", role, limit, hint=hint)


def _image_faults(terms: Terms) -> Iterator[OptionError]:
    image = terms.image_uri
    faults = list(text_faults("image_uri", image, terms.limit("AlgorithmImage"), hint=""))
    yield from faults
    if image is None or faults:
        return
    if "://" in image or re.search(r"\s", image) or not image:
        yield OptionError(
            f"image_uri is {short_repr(image)}",
            "the name of an image has neither a scheme nor spaces",
            "Pass registry/repository:tag",
            about="image_uri",
        )


def _command_faults(terms: Terms, name: str, shape: str, entry: str) -> Iterator[OptionError]:
    given = getattr(terms, name)
    if given is None:
        return
    if isinstance(given, str) or not isinstance(given, Sequence):
        yield OptionError(
            f"{name} is {short_repr(given)}",
            "it is not a list",
            f"Pass {[given]!r}",
            about=name,
            kind="type",
        )
        return
    yield from entry_count_faults(name, len(given), terms.limit(shape))
    for number, value in enumerate(given):
        yield from text_faults((name, number), value, terms.limit(entry), hint="")
