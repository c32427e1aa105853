# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters and environment variables, as SageMaker carries them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from sagemaker_dist.contract import KEY
from sagemaker_dist.contract.flags import OTHER_FLAGS, SERVED_FLAGS
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.service.limits import amount_faults, shown, text_faults
from sagemaker_dist.planning.service.terms import Terms

_PREFIX: Final = "sagemaker_"
_TOGETHER_BYTES: Final = 120_000  # Linux allows 128 KiB for SM_TRAINING_ENV, which has more in it
_FLAG: Final = re.compile(r"[^\s=-][^\s=]*")  # --name, which a script's parser has to take

# What SageMaker's SDK adds to every job that runs a script (2.257.7, estimator.py).
SCRIPT_PARAMETERS: Final = frozenset(
    {
        "sagemaker_container_log_level",
        "sagemaker_job_name",
        "sagemaker_program",
        "sagemaker_region",
        "sagemaker_submit_directory",
    }
)
# What it, and sagemaker-training 5.1.4 in the image, read besides (2026-11-21).
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


def hyperparameter_faults(terms: Terms, *, is_ours: bool) -> Iterator[OptionError]:
    """What SageMaker or the script's parser would not take; `is_ours` adds one of our own."""
    given = terms.hyperparameters
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield OptionError(
            f"hyperparameters is a {type(given).__name__}",
            "it maps names to values",
            "Pass a dict such as {'lr': 0.1}",
        )
        return
    added = (SCRIPT_PARAMETERS if terms.runs_script else frozenset()) | (
        {KEY} if is_ours else set()
    )
    yield from _amount_faults(terms, {str(name) for name in given}, added)
    yield from _twice_faults([str(name) for name in given], added)
    yield from _launcher_faults(given) if is_ours else ()
    for name, value in given.items():
        yield from _name_faults(terms, str(name))
        yield from _value_faults(terms, str(name), value)
    yield from _together_faults(terms, given)


def _amount_faults(terms: Terms, names: set[str], added: frozenset[str]) -> Iterator[OptionError]:
    most = terms.limit("HyperParameters").most
    num_own = len(names - added)
    if most is not None and num_own + len(added) > most:
        why = f"SageMaker takes at most {most}"
        yield OptionError(
            f"hyperparameters has {num_own} entries",
            f"{why}, of which the SDK needs {len(added)}" if added else why,
            "Leave some out, or pass a file of them as a channel",
        )


def _launcher_faults(given: Mapping[Any, Any]) -> Iterator[OptionError]:
    for name in (*SERVED_FLAGS.values(), *OTHER_FLAGS):
        if given.get(name):
            yield OptionError(
                f"hyperparameters has the name {name!r}",
                "it asks for a launcher, and distribution asks for ours",
                "Leave it out, or leave distribution out",
            )


def _twice_faults(names: list[str], added: frozenset[str]) -> Iterator[OptionError]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield OptionError(
            f"hyperparameters has the name {shown(name)} twice",
            "SageMaker's names are text, so one of the values would be lost",
            "Rename one",
        )
    if KEY in names and KEY in added:
        yield OptionError(
            f"hyperparameters has the name {KEY!r}",
            "it carries the distribution, which would take its place",
            "Leave it out",
        )


def _name_faults(terms: Terms, name: str) -> Iterator[OptionError]:
    what = f"hyperparameters has the name {shown(name)}"
    yield from text_faults(
        "a name of hyperparameters",
        name,
        terms.limit("HyperParameterKey"),
        mend="Correct the name",
    )
    if terms.runs_script and not _FLAG.fullmatch(name):
        yield OptionError(
            what,
            "the script gets it as --name, which has no whitespace, no '=' and no leading '-'",
            "Correct the name",
        )
    if terms.runs_script and name.startswith(_PREFIX) and name not in _KNOWN:
        yield OptionError(what, f"no script sees a name that begins with {_PREFIX}", _meant(name))
    yield from _letter_faults(terms, what, name)


def _value_faults(terms: Terms, name: str, value: Any) -> Iterator[OptionError]:
    what = f"hyperparameters[{shown(name)}]"
    try:
        text = _written(terms, value)
    except (TypeError, ValueError, RecursionError) as error:
        yield OptionError(
            f"{what} is {shown(value)}",
            f"the SDK cannot write it as JSON ({error})",
            "Pass numbers, text, and lists or dicts of them",
        )
        return
    limit = terms.limit("HyperParameterValue")
    if limit.most is not None and len(text) > limit.most:
        yield OptionError(
            f"{what} has {len(text)} characters{' as JSON' if terms.encodes_json else ''}",
            f"SageMaker takes at most {limit.most}",
            "Pass it in a file of source_dir or in a channel",
        )
    else:
        yield from text_faults(what, text, limit, mend="Correct the value")
    found = _read(text) if terms.runs_script else text
    is_text = not (terms.encodes_json or terms.is_written or name.startswith(_PREFIX))
    if is_text and isinstance(value, str) and not _is_same(value, found):
        yield OptionError(
            f"{what} is {shown(value)}",
            f"without source_dir it is read as JSON, and the script gets {shown(_argument(found))}",
            "Pass source_dir, with which text stays text",
        )
    yield from _letter_faults(terms, f"{what} is {shown(found)}", _argument(found))


def _letter_faults(terms: Terms, what: str, text: str) -> Iterator[OptionError]:
    """Letters that JSON carries and a command line or UTF-8 does not."""
    if terms.runs_script and "\0" in text:
        mend = "Pass it in a file of source_dir or in a channel"
        yield OptionError(what, "a command line cannot carry a NUL character", mend)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        why = "half of a surrogate pair is no character, and UTF-8 has no bytes for it"
        yield OptionError(what, why, "Take it out, or decode the bytes that it came from")


def _together_faults(terms: Terms, given: Mapping[Any, Any]) -> Iterator[OptionError]:
    """A script gets all of them in one variable: SM_HPS, SM_USER_ARGS, SM_TRAINING_ENV."""
    if not terms.runs_script:
        return
    try:
        written = {str(name): _written(terms, value) for name, value in given.items()}
    except (TypeError, ValueError, RecursionError):  # told of the value itself
        return
    values = {name: _read(text) for name, text in written.items() if not name.startswith(_PREFIX)}
    arguments = [part for name, value in values.items() for part in (f"--{name}", _argument(value))]
    num_bytes = max(len(json.dumps(each)) for each in (values, arguments))
    if num_bytes > _TOGETHER_BYTES:
        yield OptionError(
            f"hyperparameters take {num_bytes} bytes together",
            "the script gets them in one environment variable, which Linux limits to 128 KiB",
            "Pass some in a file of source_dir or in a channel",
        )


def _written(terms: Terms, value: Any) -> str:
    """As the SDK writes it into the request."""
    return json.dumps(value) if terms.encodes_json else str(value)


def _read(text: str) -> Any:
    """As the launcher in the image reads it: what is no JSON is text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _argument(value: Any) -> str:
    """As the script finds it on its command line (smdist.launch, sagemaker-training 5.1.4)."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={part}" for key, part in sorted(value.items()))
    return str(value)


def environment_faults(terms: Terms, environment: Any) -> Iterator[OptionError]:
    """What SageMaker does not carry; what no environment holds was said elsewhere."""
    if not isinstance(environment, Mapping):
        return
    yield from amount_faults("environment", len(environment), terms.limit("TrainingEnvironmentMap"))
    for name, value in environment.items():
        if isinstance(name, str) and name and "=" not in name and "\0" not in name:
            yield from text_faults(
                "a name of environment",
                name,
                terms.limit("TrainingEnvironmentKey"),
                mend="Pass letters, digits and '_', without a leading digit",
            )
        if isinstance(value, str):
            yield from _long_faults(terms, name, value)


def _long_faults(terms: Terms, name: object, value: str) -> Iterator[OptionError]:
    most = terms.limit("TrainingEnvironmentValue").most
    if most is not None and len(value) > most:
        yield OptionError(
            f"environment[{shown(name)}] has {len(value)} characters",
            f"SageMaker takes at most {most}",
            "Pass it as a hyperparameter, or in a file of source_dir",
        )


def _meant(name: str) -> str:
    stem = name.removeprefix(_PREFIX)
    near = get_close_matches(stem, [each.removeprefix(_PREFIX) for each in _KNOWN], n=1)
    return f"Did you mean {_PREFIX + near[0]!r}?" if near else f"Call it {stem!r}"


def _is_same(text: str, found: Any) -> bool:
    """Whether a script reads the same: 0.10 is 0.1 to who takes it for a number."""
    if _argument(found) == text:
        return True
    try:
        return type(found) in (int, float) and float(text) == found
    except ValueError:
        return False
