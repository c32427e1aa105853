# SPDX-License-Identifier: Apache-2.0
"""Requests of each class for all images, distributions and instance types; moto plays SageMaker.

Each row of tests/support/request_rows.py gives a request or an error, which must equal the golden
one in snapshots/. After an intended change:

    SMDIST_UPDATE_SNAPSHOTS=1 pytest tests/sdk/estimators/test_requests.py
    git diff tests/sdk/estimators/snapshots

A request without the sagemaker-dist launcher must equal the parent class's, too.
"""

import json
import re
import warnings
from collections import defaultdict
from functools import cache
from pathlib import Path

import boto3
import pytest
from request_rows import (
    CLASSES,
    DISTRIBUTIONS,
    INSTANCES,
    RESOURCES,
    ROWS,
    TAG,
    TENSORFLOW_TAG,
    THEIRS,
    image_arguments,
)
from sagemaker import image_uris
from sagemaker import utils as sagemaker_utils
from sagemaker.deprecations import SageMakerV2DeprecationWarning
from snapshots import IS_UPDATE, Outcome, load, pack, save

from sagemaker_dist import DataParallel, OptionError
from sagemaker_dist.contract import render
from sagemaker_dist.contract.distribution_keys import SMDIST
from sagemaker_dist.contract.metrics import metric_definitions
from sagemaker_dist.planning.distribution_support import GENERIC, SUPPORT

pytestmark = pytest.mark.timeout(60)

FOLDER = Path(__file__).parent / "snapshots"
ROLE = "arn:aws:iam::123456789012:role/training"
MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "layers": [],
    }
)
IGNORES = re.compile(r"which SageMaker's \w+ ignores")
DOCUMENT = render(DataParallel())  # golden in tests/contract
TENSORFLOWS = render(DataParallel(), "tensorflow")
OF_SDK = "SageMaker's SDK: "


@pytest.fixture(scope="module")
def goldens():
    """Return the rows of every class; in update mode, write the rows that the tests found."""
    known = {kind: load(FOLDER / f"{kind}.json") for kind in CLASSES}
    found = defaultdict(dict)
    yield found if IS_UPDATE else known
    for kind, rows in found.items():
        wanted = {row: outcome for row, outcome in known[kind].items() if (kind, *row[:2]) in ROWS}
        save(FOLDER / f"{kind}.json", {**wanted, **rows})


@pytest.fixture(scope="module")
def prepared(amazon):
    """Return the session, with the sagemaker-dist images pushed, and with cached tables of
    the SDK.
    """
    ecr = amazon.boto_session.client("ecr")
    ecr.create_repository(repositoryName="sagemaker-dist")
    for tag in (TAG, TENSORFLOW_TAG):
        ecr.put_image(repositoryName="sagemaker-dist", imageManifest=MANIFEST, imageTag=tag)
    with pytest.MonkeyPatch.context() as patch:
        read = cache(image_uris.config_for_framework)
        patch.setattr(image_uris, "config_for_framework", read)
        patch.setattr(
            sagemaker_utils, "_botocore_resolver", cache(sagemaker_utils._botocore_resolver)
        )
        patch.setattr(boto3, "client", cache(boto3.client))
        yield amazon


@pytest.fixture
def ask(prepared, script):
    """Return a function that fits the job of a row with a class or its parent."""
    source = script()

    def fit(kind, row, *, parent=False):
        image, distribution, instances = row
        arguments = {
            "entry_point": "train.py",
            "source_dir": source,
            "role": ROLE,
            "sagemaker_session": prepared,
            "hyperparameters": {"epochs": 3, "name": "x"},
            "distribution": spelt(DISTRIBUTIONS[distribution][1]),
            **image_arguments(kind, image, distribution, instances),
            **INSTANCES[instances],
        }
        if not parent and distribution != "none":
            arguments["distribution"] = DISTRIBUTIONS[distribution][1]
        prepared.requests = []
        built = CLASSES[kind][parent](**arguments)
        built.fit({"training": "s3://bucket/data"}, wait=False)
        (request,) = prepared.requests
        return short(request, request["TrainingJobName"], instances), built

    return fit


def spelt(value):
    """Return a distribution as the parent takes it."""
    return value.distribution() if hasattr(value, "distribution") else value


def short(value, name, instances):
    """Return a request without parts that change, and with short names for long values."""
    if value == {"VolumeSizeInGB": 30, **RESOURCES[instances]}:
        return "as requested"
    if value == metric_definitions():
        return "those of the smdist runtime"
    if isinstance(value, dict):
        return {key: short(each, name, instances) for key, each in value.items()}
    if isinstance(value, list):
        return [short(each, name, instances) for each in value]
    if not isinstance(value, str):
        return value
    kind = INSTANCES[instances].get("instance_type", "TYPE")
    names = [(name, "NAME"), (kind, "TYPE"), (TAG, "TAG"), (TENSORFLOW_TAG, "TENSORFLOW-TAG")]
    for long, brief in names:
        value = value.replace(long, brief)
    for long, brief in ((DOCUMENT, "DOCUMENT"), (TENSORFLOWS, "TENSORFLOW'S DOCUMENT")):
        value = value.replace(json.dumps(long), f'"{brief}"').replace(long, brief)
    return value


def outcome_of(ask, kind, row, *, parent=False):
    """Return the outcome of a row, whether it is the parent's own, and the text of the SDK's
    error.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", SageMakerV2DeprecationWarning)  # not about the job
        request = error = text = None
        is_parents = False
        try:
            request, built = ask(kind, row, parent=parent)
            is_parents = parent or not built._parsed.is_launched
        except OptionError as fault:
            error = str(fault)
        except Exception as fault:  # the SDK raises many kinds
            is_parents, error, text = True, OF_SDK + type(fault).__name__, str(fault)
    assert {UserWarning} >= {each.category for each in caught}
    said = frozenset(str(each.message) for each in caught)
    return Outcome(request=request, error=error, warnings=said), is_parents, text


@pytest.mark.parametrize(("kind", "image", "distribution"), ROWS)
def test_a_job_is_asked_for_as_ever(ask, goldens, kind, image, distribution):
    """Every request equals its golden row; without the sagemaker-dist launcher also the
    parent's.
    """
    for instances in INSTANCES:
        row = (image, distribution, instances)
        outcome, is_parents, text = outcome_of(ask, kind, row)
        if IS_UPDATE:
            goldens[kind][row] = outcome

        assert goldens[kind].get(row) == outcome, f"{row}: see the module's docstring"
        if is_parents:
            theirs, _, their_text = outcome_of(ask, kind, row, parent=True)

            assert (theirs.request, theirs.error, their_text) == (
                outcome.request,
                outcome.error,
                text,
            )


@pytest.mark.skipif(IS_UPDATE, reason="the files are being written")
@pytest.mark.parametrize("kind", CLASSES)
def test_every_golden_row_has_a_test(goldens, kind):
    """The golden files have a row for each test, in the format that the tests write."""
    wanted = {
        (image, distribution, instances)
        for each, image, distribution in ROWS
        for instances in INSTANCES
        if each == kind
    }

    assert wanted == set(goldens[kind])
    assert pack(goldens[kind]) == json.loads((FOLDER / f"{kind}.json").read_text())


@pytest.mark.skipif(IS_UPDATE, reason="the files are being written")
@pytest.mark.parametrize(("kind", "image"), dict.fromkeys(row[:2] for row in ROWS))
def test_the_table_of_support_is_what_happens(goldens, kind, image):
    """Every cell of SUPPORT agrees with the golden rows."""
    rows = goldens[kind]
    keys = [
        key for key in SUPPORT if (image, key) != ("another", "pytorchxla")
    ]  # SDK: no image_uri
    own = {
        key: {row: rows[row] for row in rows if (row[0], DISTRIBUTIONS[row[1]][0]) == (image, key)}
        for key in keys
    }

    assert {key: served(key, kind, image) for key in keys} == {
        key: happens(own[key], rows) for key in keys
    }


def served(key, kind, image):
    """Return the entry of SUPPORT for a key, a class and an image."""
    is_theirs = image == THEIRS or (image == "another" and key != SMDIST)
    if is_theirs and kind != GENERIC:
        return SUPPORT[key].in_aws_image(kind)
    return SUPPORT[key].with_launcher(kind)


def happens(rows, all_rows):
    """Return the same kind of entry, computed from the golden rows of one key."""
    ran = {row: outcome for row, outcome in rows.items() if outcome.request is not None}
    if not ran:
        by_sdk = [row for row, outcome in rows.items() if outcome.error.startswith(OF_SDK)]
        return "refused" if not by_sdk else f"SageMaker's SDK refuses {by_sdk}"
    started = [
        row for row, outcome in ran.items() if not any(map(IGNORES.search, outcome.warnings))
    ]
    if not started:
        return "ignored"
    lost = [row for row in started if rows[row].request == all_rows[row[0], "none", row[2]].request]
    return "runs" if not lost else f"nothing is sent for {lost}"
