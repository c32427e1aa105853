# SPDX-License-Identifier: Apache-2.0
"""Checks of a job's tags and metric definitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sagemaker_dist.errors import OptionError, within
from sagemaker_dist.planning.service.limits import entry_count_faults, short_repr, text_faults
from sagemaker_dist.planning.service.terms import Terms

_JAVA_NAME: Final = re.compile(r"\(\?<(?![=!])")  # SageMaker's expressions are Java's
# Errors of Python's re for syntax that Java supports, and SageMaker with it.
_OF_JAVA: Final = ("bad escape", "unknown extension", "multiple repeat")


def tag_faults(terms: Terms) -> Iterator[OptionError]:
    """Yield the faults of tags that SageMaker would refuse."""
    given = terms.tags
    is_mapping = isinstance(given, Mapping)
    if isinstance(given, Mapping):  # SageMaker's SDK converts a dict in the same way
        given = [
            {"Key": str(key), "Value": None if value is None else str(value)}
            for key, value in given.items()
        ]
    if given is None:
        return
    if not _is_list_of(given, {"Key", "Value"}):
        yield OptionError(
            f"tags is {short_repr(given)}",
            "it is neither a dict nor a list of {'Key': ..., 'Value': ...}",
            "Pass a dict such as {'team': 'vision'}",
            about="tags",
            kind="type",
        )
        return
    yield from entry_count_faults("tags", len(given), terms.limit("TagList"))
    for number, tag in enumerate(given):
        faults = _tag_faults(terms, number, tag)
        for fault in faults:  # in a dict, the user's path to the tag is its key, not its number
            fault.about = ("tags", tag["Key"]) if is_mapping else fault.about
            yield fault
    for key, times in Counter(str(tag["Key"]) for tag in given if tag["Key"] is not None).items():
        if times > 1:
            yield OptionError(
                f"tags has the key {key!r} {times} times",
                "each tag needs a different key",
                "Keep one of them",
                about="tags",
                kind="repeated",
            )


def _tag_faults(terms: Terms, number: int, tag: Mapping[str, Any]) -> Iterator[OptionError]:
    for part, shape in (("Key", "TagKey"), ("Value", "TagValue")):
        yield from text_faults(
            ("tags", number, part),
            tag[part],
            terms.limit(shape),
            hint="Pass letters, digits, spaces and any of _.:/=+-@",
        )
    if str(tag["Key"]).lower().startswith("aws:"):
        yield OptionError(
            f"tags[{number}]['Key'] is {short_repr(tag['Key'])}",
            "keys that begin with aws: are reserved for AWS",
            "Pass another key",
            about=("tags", number, "Key"),
            kind="reserved",
        )


def metric_faults(terms: Terms) -> Iterator[OptionError]:
    """Yield faults of metric definitions that SageMaker refuses or that never match a number."""
    given = terms.metric_definitions
    if given is None:
        return
    if not _is_list_of(given, {"Name", "Regex"}):
        yield OptionError(
            f"metric_definitions is {short_repr(given)}",
            "it is not a list of {'Name': ..., 'Regex': ...}",
            "Pass a list such as [{'Name': 'loss', 'Regex': 'loss=([0-9.]+)'}]",
            about="metric_definitions",
            kind="type",
        )
        return
    yield from entry_count_faults(
        "metric_definitions", len(given), terms.limit("MetricDefinitionList")
    )
    for number, metric in enumerate(given):
        what = f"metric_definitions[{number}]"
        for part, shape in (("Name", "MetricName"), ("Regex", "MetricRegex")):
            yield from text_faults(
                ("metric_definitions", number, part),
                metric[part],
                terms.limit(shape),
                hint=f"Pass a {part}",
            )
        if isinstance(metric["Regex"], str) and metric["Regex"]:
            faults = _regex_faults(f"{what}['Regex'] is {short_repr(metric['Regex'])}", metric)
            yield from within(faults, "metric_definitions", number, "Regex")


def _regex_faults(what: str, metric: Mapping[str, str]) -> Iterator[OptionError]:
    try:
        groups = re.compile(_JAVA_NAME.sub("(?P<", metric["Regex"])).groups
    except re.error as error:
        if not error.msg.startswith(_OF_JAVA):
            yield OptionError(
                what, f"it is not a regular expression ({error})", "Correct the expression"
            )
        return
    if not groups:
        yield OptionError(
            what,
            "SageMaker reads the number from the first group, and the expression has no group",
            "Put the part that matches the number in parentheses",
            kind="missing",
        )


def _is_list_of(given: Any, keys: set[str]) -> bool:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    return is_list and all(isinstance(each, Mapping) and keys == set(each) for each in given)
