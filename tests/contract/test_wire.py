# SPDX-License-Identifier: Apache-2.0
"""What the SDK writes, every image of its version or newer reads back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.contract import VERSION, DataParallel, MiB, parse, render
from sagemaker_dist.contract.wire import MAX_CHARACTERS
from sagemaker_dist.errors import OptionError, SkewError

GOLDEN = Path(__file__).parent / "golden"
SECONDS = st.integers(1, 86_400)
SMALL = st.none() | st.integers(0, MiB)
OPTIONS = st.builds(
    DataParallel,
    processes_per_host=st.none() | st.integers(1, 1024),
    fusion_bytes=st.integers(MiB, 4096 * MiB),
    timeout_seconds=SECONDS,
    start_timeout_seconds=SECONDS,
    lanes=st.none() | st.integers(1, 16),
    chunk_bytes=st.none() | st.integers(1024, MiB // 4).map(lambda lines: 64 * lines),
    one_shot_bytes=SMALL,
    single_owner_bytes=SMALL,
    arriving_bytes=SMALL,
    shard_weights=st.none() | st.lists(st.integers(0, 65_535), min_size=1).filter(any),
)


@given(options=OPTIONS)
def test_round_trip(options):
    """What the SDK writes, the container reads back unchanged, raw or encoded once more."""
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


def test_golden_version_2_parses_forever():
    """The second document, with the options that tune the engine."""
    expected = DataParallel(
        processes_per_host=4,
        fusion_bytes=32 * MiB,
        timeout_seconds=240,
        start_timeout_seconds=30,
        lanes=4,
        chunk_bytes=256 * 1024,
        one_shot_bytes=0,
        single_owner_bytes=64 * 1024,
        arriving_bytes=224 * 1024,
        shard_weights=(1, 2, 0),
    )

    assert expected == parse((GOLDEN / "v2.json").read_text())


def test_golden_of_the_current_version_is_what_we_write():
    """Changing the document without a new version is caught here."""
    golden = (GOLDEN / f"v{VERSION}.json").read_text().strip()

    assert golden == render(parse(golden))


def test_document_fits_sagemaker():
    """One line of fewer than 2,500 characters, also with the longest values."""
    text = render(
        DataParallel(
            processes_per_host=1024,
            fusion_bytes=4096 * MiB,
            timeout_seconds=86_400,
            lanes=16,
            chunk_bytes=16 * MiB,
            one_shot_bytes=MiB,
            single_owner_bytes=MiB,
            arriving_bytes=64 * MiB,
            shard_weights=(65_535,) * 350,
        )
    )

    assert "\n" not in text
    assert MAX_CHARACTERS > len(text)


def test_weights_of_too_many_hosts_do_not_fit():
    """What SageMaker would refuse is refused before it is sent."""
    with pytest.raises(OptionError, match="SageMaker carries at most 2500"):
        render(DataParallel(shard_weights=(65_535,) * 400))


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
        ('{"version":1,"dataparallel":{"lane":4}}', r"unknown keys \['lane'\]"),
        ('{"version":1,"dataparallel":{},"tensorparallel":{}}', r"\['tensorparallel'\]"),
    ],
)
def test_other_documents_are_refused(text, why):
    """A document that is not ours is refused with its reason."""
    with pytest.raises(SkewError, match=why):
        parse(text)
