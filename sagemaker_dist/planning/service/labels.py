# SPDX-License-Identifier: Apache-2.0
"""Tags of a job, and the metrics that are read from its log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.service.limits import amount_faults, shown, text_faults
from sagemaker_dist.planning.service.terms import Terms

_JAVA_NAME: Final = re.compile(r"\(\?<(?![=!])")  # SageMaker's expressions are Java's
_OF_JAVA: Final = (
    "bad escape",
    "unknown extension",
    "multiple repeat",
)  # what Python's re may not know


def tag_faults(terms: Terms) -> Iterator[OptionError]:
    """Tags that SageMaker would not attach."""
    given = terms.tags
    if isinstance(given, Mapping):  # as the SDK reads them
        given = [
            {"Key": str(key), "Value": None if value is None else str(value)}
            for key, value in given.items()
        ]
    if given is None:
        return
    if not _is_list_of(given, {"Key", "Value"}):
        yield OptionError(
            f"tags is {shown(given)}",
            "it is neither a dict nor a list of {'Key': ..., 'Value': ...}",
            "Pass a dict such as {'team': 'vision'}",
        )
        return
    yield from amount_faults("tags", len(given), terms.limit("TagList"))
    for number, tag in enumerate(given):
        yield from _tag_faults(terms, number, tag)
    for key, times in Counter(str(tag["Key"]) for tag in given if tag["Key"] is not None).items():
        if times > 1:
            yield OptionError(
                f"tags has the key {key!r} {times} times", "keys are unique", "Keep one of them"
            )


def _tag_faults(terms: Terms, number: int, tag: Mapping[str, Any]) -> Iterator[OptionError]:
    for part, shape in (("Key", "TagKey"), ("Value", "TagValue")):
        yield from text_faults(
            f"tags[{number}][{part!r}]",
            tag[part],
            terms.limit(shape),
            mend="Pass letters, digits, spaces and any of _.:/=+-@",
        )
    if str(tag["Key"]).lower().startswith("aws:"):
        yield OptionError(
            f"tags[{number}]['Key'] is {shown(tag['Key'])}",
            "keys in aws: are Amazon's own",
            "Pass another key",
        )


def metric_faults(terms: Terms) -> Iterator[OptionError]:
    """Metrics that SageMaker would refuse, or never find a number for."""
    given = terms.metric_definitions
    if given is None:
        return
    if not _is_list_of(given, {"Name", "Regex"}):
        yield OptionError(
            f"metric_definitions is {shown(given)}",
            "it is no list of {'Name': ..., 'Regex': ...}",
            "Pass a list such as [{'Name': 'loss', 'Regex': 'loss=([0-9.]+)'}]",
        )
        return
    yield from amount_faults("metric_definitions", len(given), terms.limit("MetricDefinitionList"))
    for number, metric in enumerate(given):
        what = f"metric_definitions[{number}]"
        for part, shape in (("Name", "MetricName"), ("Regex", "MetricRegex")):
            yield from text_faults(
                f"{what}[{part!r}]", metric[part], terms.limit(shape), mend=f"Pass a {part}"
            )
        if isinstance(metric["Regex"], str) and metric["Regex"]:
            yield from _regex_faults(f"{what}['Regex'] is {shown(metric['Regex'])}", metric)


def _regex_faults(what: str, metric: Mapping[str, str]) -> Iterator[OptionError]:
    try:
        groups = re.compile(_JAVA_NAME.sub("(?P<", metric["Regex"])).groups
    except re.error as error:
        if not error.msg.startswith(_OF_JAVA):
            yield OptionError(
                what, f"it is no regular expression ({error})", "Correct the expression"
            )
        return
    if not groups:
        yield OptionError(
            what,
            "the number is what its first group catches, and it has none",
            "Put the number's pattern in parentheses",
        )


def _is_list_of(given: Any, keys: set[str]) -> bool:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    return is_list and all(isinstance(each, Mapping) and keys == set(each) for each in given)
