# SPDX-License-Identifier: Apache-2.0
"""Fields of errors, for tests: the path of the wrong option, and the word for what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from sagemaker_dist.errors import DistError, OptionError, dotted, parts_of


def fields_of(faults: DistError | Iterable[DistError]) -> list[tuple[str, str]]:
    """Return (about, kind) of each fault, such as ("inputs.train.uri", "missing_file")."""
    each = [faults] if isinstance(faults, DistError) else faults
    parts = [part for one in each for part in (parts_of(one) if _may_be_several(one) else [one])]
    return [(dotted(part.about), part.kind) for part in parts]


def fields_raised(call: Callable[[], object]) -> list[tuple[str, str]]:
    """Return (about, kind) of each fault of the OptionError that a call raises."""
    with pytest.raises(OptionError) as caught:
        call()
    return fields_of(caught.value)


def _may_be_several(error: DistError) -> bool:
    return isinstance(error, OptionError)
