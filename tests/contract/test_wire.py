# SPDX-License-Identifier: Apache-2.0
"""What the SDK writes, every image of its version or newer reads back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.contract import VERSION, DataParallel, MiB, parse, render
from sagemaker_dist.contract.wire import MAX_CHARACTERS
from sagemaker_dist.errors import SkewError

GOLDEN = Path(__file__).parent / "golden"
SECONDS = st.integers(1, 86_400)


@given(
    processes=st.none() | st.integers(1, 1024),
    fusion_bytes=st.integers(MiB, 4096 * MiB),
    timeout=SECONDS,
    start_timeout=SECONDS,
)
def test_round_trip(processes, fusion_bytes, timeout, start_timeout):
    """What the SDK writes, the container reads back unchanged, raw or encoded once more."""
    options = DataParallel(
        processes_per_host=processes,
        fusion_bytes=fusion_bytes,
        timeout_seconds=timeout,
        start_timeout_seconds=start_timeout,
    )
    text = render(options)

    assert options == parse(text)
    assert options == parse(json.dumps(text))


def test_golden_version_1_parses_forever():
    """The first document ever written still means what it meant."""
    expected = DataParallel(
        processes_per_host=2,
        fusion_bytes=8 * MiB,
        timeout_seconds=120,
        start_timeout_seconds=60,
    )

    assert expected == parse((GOLDEN / "v1.json").read_text())


def test_golden_of_the_current_version_is_what_we_write():
    """Changing the document without a new version is caught here."""
    golden = (GOLDEN / f"v{VERSION}.json").read_text().strip()

    assert golden == render(parse(golden))


def test_document_fits_sagemaker():
    """One line of fewer than 2,500 characters, also with the longest values."""
    text = render(
        DataParallel(processes_per_host=1024, fusion_bytes=4096 * MiB, timeout_seconds=86_400)
    )

    assert "\n" not in text
    assert MAX_CHARACTERS > len(text)


def test_newer_document_names_both_versions():
    """An old image says which version it got and which it reads."""
    with pytest.raises(SkewError, match=rf"version 99.*versions up to {VERSION}"):
        parse('{"version":99,"dataparallel":{}}')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[1]", "JSON list"),
        ("{}", "version is None"),
        ('{"version":true,"dataparallel":{}}', "version is True"),
        ('{"version":1}', "no 'dataparallel' section"),
        ('{"version":1,"dataparallel":[]}', "no 'dataparallel' section"),
        ('{"version":1,"dataparallel":{"lanes":4}}', r"unknown keys \['lanes'\]"),
        ('{"version":1,"dataparallel":{},"tensorparallel":{}}', r"\['tensorparallel'\]"),
    ],
)
def test_other_documents_are_refused(text, why):
    """A document that is not ours is refused with its reason."""
    with pytest.raises(SkewError, match=why):
        parse(text)
