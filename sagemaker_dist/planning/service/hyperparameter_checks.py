# SPDX-License-Identifier: Apache-2.0
"""Checks of hyperparameters and environment variables."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from sagemaker_dist.contract import KEY
from sagemaker_dist.contract.sdk_flags import OTHER_FLAGS, SERVED_FLAGS
from sagemaker_dist.errors import OptionError, within
from sagemaker_dist.planning.service.limits import entry_count_faults, short_repr, text_faults
from sagemaker_dist.planning.service.terms import Terms

_PREFIX: Final = "sagemaker_"
# Linux allows 128 KiB for SM_TRAINING_ENV, which has other values besides the hyperparameters.
_MOST_TOTAL_BYTES: Final = 120_000
_FLAG: Final = re.compile(r"[^\s=-][^\s=]*")  # name in --name, as the script's parser can read it

# Hyperparameters that SageMaker's SDK adds to every job with a script (2.257.7, estimator.py).
SCRIPT_PARAMETERS: Final = frozenset(
    {
        "sagemaker_container_log_level",
        "sagemaker_job_name",
        "sagemaker_program",
        "sagemaker_region",
        "sagemaker_submit_directory",
    }
)
# Hyperparameters that the SDK, or sagemaker-training 5.1.4 in the image, reads (2026-11-21).
_KNOWN: Final = SCRIPT_PARAMETERS | {
    KEY,
    "sagemaker_additional_mpi_options",
    "sagemaker_default_invocations_accept",
    "sagemaker_distributed_dataparallel_custom_mpi_options",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_distribution_instance_groups",
    "sagemaker_enable_cloudwatch_metrics",
    "sagemaker_estimator",
    "sagemaker_estimator_class_name",
    "sagemaker_estimator_module",
    "sagemaker_framework_module",
    "sagemaker_instance_type",
    "sagemaker_mpi_custom_mpi_options",
    "sagemaker_mpi_enabled",
    "sagemaker_mpi_num_of_processes_per_host",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    "sagemaker_num_processes",
    "sagemaker_parameter_server_enabled",
    "sagemaker_process_slots_per_host",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_recipe_local_path",
    "sagemaker_requirements",
    "sagemaker_s3_output",
    "sagemaker_torch_distributed_enabled",
    "sagemaker_training_compiler_debug_mode",
    "sagemaker_training_compiler_enabled",
    "sagemaker_use_mpi",
}


def hyperparameter_faults(terms: Terms, *, has_launcher: bool) -> Iterator[OptionError]:
    """Yield the faults of hyperparameters that SageMaker or the script would not accept.

    Args:
        terms: Arguments of the job.
        has_launcher: True if the sagemaker-dist launcher starts the job. Then its own
            hyperparameter counts towards SageMaker's limit of entries, and hyperparameters that
            request another launcher are faults.
    """
    given = terms.hyperparameters
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield OptionError(
            f"hyperparameters is of type {type(given).__name__}",
            "it must be a dict of names and values",
            "Pass a dict such as {'lr': 0.1}",
            about="hyperparameters",
            kind="type",
        )
        return
    added = (SCRIPT_PARAMETERS if terms.runs_script else frozenset()) | (
        {KEY} if has_launcher else set()
    )
    yield from _amount_faults(terms, {str(name) for name in given}, added)
    yield from _duplicate_faults([str(name) for name in given], added)
    yield from _launcher_faults(given) if has_launcher else ()
    for name, value in given.items():
        yield from _name_faults(terms, str(name))
        yield from _value_faults(terms, str(name), value)
    yield from _total_size_faults(terms, given)


def _amount_faults(terms: Terms, names: set[str], added: frozenset[str]) -> Iterator[OptionError]:
    most = terms.limit("HyperParameters").most
    num_own = len(names - added)
    if most is not None and num_own + len(added) > most:
        why = f"SageMaker allows at most {most}"
        yield OptionError(
            f"hyperparameters has {num_own} entries",
            f"{why}, and the SDK adds {len(added)}" if added else why,
            "Leave some out, or pass them in a file of an input channel",
            about="hyperparameters",
            kind="too_many",
        )


def _launcher_faults(given: Mapping[Any, Any]) -> Iterator[OptionError]:
    for name in (*SERVED_FLAGS.values(), *OTHER_FLAGS):
        if given.get(name):
            yield OptionError(
                f"hyperparameters has the name {name!r}",
                "it requests another launcher than the option distribution",
                "Leave it out, or leave distribution out",
                about=("hyperparameters", name),
                kind="conflict",
            )


def _duplicate_faults(names: list[str], added: frozenset[str]) -> Iterator[OptionError]:
    for name in sorted(name for name, count in Counter(names).items() if count > 1):
        yield OptionError(
            f"hyperparameters has the name {short_repr(name)} twice",
            "the keys are equal when they are converted to text, so one value would be lost",
            "Rename one of them",
            about=("hyperparameters", name),
            kind="repeated",
        )
    if KEY in names and KEY in added:
        yield OptionError(
            f"hyperparameters has the name {KEY!r}",
            "sagemaker-dist sends the options of distribution under this name",
            "Leave it out",
            about=("hyperparameters", KEY),
            kind="reserved",
        )


def _name_faults(terms: Terms, name: str) -> Iterator[OptionError]:
    what = f"hyperparameters has the name {short_repr(name)}"
    yield from text_faults(
        ("hyperparameters", name),
        name,
        terms.limit("HyperParameterKey"),
        hint="Correct the name",
        label="a name of hyperparameters",
    )
    if terms.runs_script and not _FLAG.fullmatch(name):
        yield OptionError(
            what,
            "the script gets it as --name, so whitespace, '=' and a leading '-' are not allowed",
            "Correct the name",
            about=("hyperparameters", name),
        )
    if terms.runs_script and name.startswith(_PREFIX) and name not in _KNOWN:
        yield OptionError(
            what,
            f"names that begin with {_PREFIX} are reserved, and not passed to scripts",
            _meant(name),
            about=("hyperparameters", name),
            kind="reserved",
        )
    yield from within(_character_faults(terms, what, name), "hyperparameters", name)


def _value_faults(terms: Terms, name: str, value: Any) -> Iterator[OptionError]:
    what = f"hyperparameters[{short_repr(name)}]"
    try:
        text = _written(terms, value)
    except (TypeError, ValueError, RecursionError) as error:
        yield OptionError(
            f"{what} is {short_repr(value)}",
            f"the SDK cannot encode it as JSON ({error})",
            "Pass a number, a text, or a list or dict of them",
            about=("hyperparameters", name),
            kind="type",
        )
        return
    limit = terms.limit("HyperParameterValue")
    if limit.most is not None and len(text) > limit.most:
        yield OptionError(
            f"{what} has {len(text)} characters{' as JSON' if terms.encodes_json else ''}",
            f"SageMaker allows at most {limit.most}",
            "Pass it in a file of source_dir or of an input channel",
            about=("hyperparameters", name),
            kind="too_long",
        )
    else:
        yield from text_faults(
            ("hyperparameters", name), text, limit, hint="Correct the value", label=what
        )
    found = _read(text) if terms.runs_script else text
    is_text = not (terms.encodes_json or terms.is_written or name.startswith(_PREFIX))
    if is_text and isinstance(value, str) and not _is_same(value, found):
        yield OptionError(
            f"{what} is {short_repr(value)}",
            "without source_dir the text is read as JSON, and the script gets"
            f" {short_repr(_argument(found))}",
            "Pass source_dir, with which the script gets the text unchanged",
            about=("hyperparameters", name),
            kind="ambiguous",
        )
    faults = _character_faults(terms, f"{what} is {short_repr(found)}", _argument(found))
    yield from within(faults, "hyperparameters", name)


def _character_faults(terms: Terms, what: str, text: str) -> Iterator[OptionError]:
    """Yield a fault if `text` has a character that JSON can encode, but the script cannot get.

    A command line cannot contain NUL, and UTF-8 cannot encode half of a surrogate pair.

    Args:
        terms: Arguments of the job.
        what: First part of the message, which names the hyperparameter.
        text: Name or value of the hyperparameter.
    """
    if terms.runs_script and "\0" in text:
        hint = "Remove the character, or pass the data in a file of source_dir or an input channel"
        yield OptionError(what, "a command line cannot contain a NUL character", hint, kind="nul")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        why = "it contains half of a surrogate pair, which UTF-8 cannot encode"
        yield OptionError(
            what,
            why,
            "Remove this half, or decode the original bytes correctly",
            kind="surrogate",
        )


def _total_size_faults(terms: Terms, given: Mapping[Any, Any]) -> Iterator[OptionError]:
    """Yield a fault if all hyperparameters together are too long for one environment variable.

    `given` has the hyperparameters by name. The script gets all of them in each of the variables
    SM_HPS, SM_USER_ARGS and SM_TRAINING_ENV.
    """
    if not terms.runs_script:
        return
    try:
        written = {str(name): _written(terms, value) for name, value in given.items()}
    except (TypeError, ValueError, RecursionError):  # reported for the value itself
        return
    values = {name: _read(text) for name, text in written.items() if not name.startswith(_PREFIX)}
    arguments = [part for name, value in values.items() for part in (f"--{name}", _argument(value))]
    num_bytes = max(len(json.dumps(each)) for each in (values, arguments))
    if num_bytes > _MOST_TOTAL_BYTES:
        yield OptionError(
            f"hyperparameters take {num_bytes} bytes together",
            "the script gets them in one environment variable, which Linux limits to 128 KiB",
            "Pass some of them in a file of source_dir or of an input channel",
            about="hyperparameters",
            kind="too_long",
        )


def _written(terms: Terms, value: Any) -> str:
    """Return the text that SageMaker's SDK sends for a hyperparameter's value.

    `terms.encodes_json` is True if this text is JSON, False if it is str(value).
    """
    return json.dumps(value) if terms.encodes_json else str(value)


def _read(text: str) -> Any:
    """Return the value that the launcher in the image decodes from `text`.

    Text that is not JSON is returned unchanged.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _argument(value: Any) -> str:
    """Return a hyperparameter's value as text, as the launcher writes it on the command line.

    Source: sagemaker-training 5.1.4; the sagemaker-dist launcher does the same.
    """
    if isinstance(value, Mapping):
        return ",".join(f"{key}={part}" for key, part in sorted(value.items()))
    return str(value)


def environment_faults(terms: Terms, environment: Any) -> Iterator[OptionError]:
    """Yield the faults of environment variables that exceed SageMaker's limits.

    Names that no operating system allows, such as a name with "=", are skipped, because another
    check reports them.
    """
    if not isinstance(environment, Mapping):
        return
    yield from entry_count_faults(
        "environment", len(environment), terms.limit("TrainingEnvironmentMap")
    )
    for name, value in environment.items():
        if isinstance(name, str) and name and "=" not in name and "\0" not in name:
            yield from text_faults(
                ("environment", name),
                name,
                terms.limit("TrainingEnvironmentKey"),
                hint="Pass letters, digits and '_', without a leading digit",
                label="a name of environment",
            )
        if isinstance(value, str):
            yield from _length_faults(terms, name, value)


def _length_faults(terms: Terms, name: object, value: str) -> Iterator[OptionError]:
    most = terms.limit("TrainingEnvironmentValue").most
    if most is not None and len(value) > most:
        yield OptionError(
            f"environment[{short_repr(name)}] has {len(value)} characters",
            f"SageMaker allows at most {most}",
            "Pass it as a hyperparameter, or in a file of source_dir",
            about=("environment", str(name)),
            kind="too_long",
        )


def _meant(name: str) -> str:
    stem = name.removeprefix(_PREFIX)
    near = get_close_matches(stem, [each.removeprefix(_PREFIX) for each in _KNOWN], n=1)
    return f"Did you mean {_PREFIX + near[0]!r}?" if near else f"Rename it to {stem!r}"


def _is_same(text: str, found: Any) -> bool:
    """Return whether the script gets the value of a hyperparameter that the user passed.

    `text` is the user's value. `found` is the value that the launcher decodes from `text`, and that
    the script gets. Numbers that differ only in notation, such as "0.10" and 0.1, are the same.
    """
    if _argument(found) == text:
        return True
    try:
        return type(found) in (int, float) and float(text) == found
    except ValueError:
        return False
