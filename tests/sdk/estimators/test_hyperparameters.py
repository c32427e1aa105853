# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters reach SageMaker as they were given; values that cannot be passed on are
refused.
"""

import json
import re

import pytest
from hyperparameters import JSON_TEXTS, TEXTS, VALUES, commands

from sagemaker_dist import (
    DataParallel,
    Estimator,
    HuggingFace,
    OptionError,
    OptionErrors,
    PyTorch,
    TensorFlow,
)
from sagemaker_dist.contract import KEY

pytestmark = pytest.mark.timeout(60)

GIVEN = {**TEXTS, **VALUES, **commands("canary")}
TOO_LONG = "has 2501 characters as JSON: SageMaker allows at most 2500. Pass it in a file"
NUL = (
    "a command line cannot contain a NUL character. Pass it in a file of source_dir or of an"
    " input channel."
)
HALF = (
    "half of a surrogate pair is not a character, and UTF-8 cannot encode it. Remove the"
    " character, or decode the original bytes correctly."
)


@pytest.fixture
def build(session, script, monkeypatch):
    """Return a function that builds an estimator of any class from valid arguments."""
    monkeypatch.chdir(script())

    def make(kind, **changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": ".",
            "role": "arn:aws:iam::123456789012:role/training",
            "instance_type": "ml.c5.xlarge",
            "instance_count": 1,
            "image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1",
            "sagemaker_session": session,
            **changes,
        }
        if kind is HuggingFace:
            arguments["py_version"] = None
        return kind(**arguments)

    return make


def sent(session, built):
    """Return the user's hyperparameters in the request."""
    built.fit(wait=False)
    (request,) = session.requests
    given = request["HyperParameters"]
    own = {"model_dir"} if type(built) is TensorFlow else set()
    return {k: v for k, v in given.items() if not k.startswith("sagemaker_") and k not in own}


@pytest.mark.parametrize("kind", [Estimator, HuggingFace, PyTorch, TensorFlow])
def test_a_request_has_each_value_as_json(build, session, kind):
    """Each value is one line of ASCII JSON, from which it is restored with its type."""
    request = sent(session, build(kind, hyperparameters=dict(GIVEN)))

    assert list(GIVEN) == list(request)
    assert all(text.isascii() and text.isprintable() for text in request.values())
    assert [repr(value) for value in GIVEN.values()] == [
        repr(json.loads(text)) for text in request.values()
    ]


def test_a_generic_estimator_without_source_dir_sends_text(build, session):
    """A generic Estimator without source_dir sends str() of each value, as the SDK does."""
    plain = {name: TEXTS[name] for name in TEXTS if name not in JSON_TEXTS or "number" in name}
    given = {**{k: v for k, v in plain.items() if v.isprintable()}, **VALUES}
    request = sent(session, build(Estimator, source_dir=None, hyperparameters=dict(given)))

    assert {name: str(value) for name, value in given.items()} == request


def test_the_greatest_that_sagemaker_takes_are_taken(build, session):
    """Values up to SageMaker's limit pass; JSON adds quotes and escapes to their length."""
    given = {"a": "x" * 2498, "b" * 256: 1, "c": "é" * 416}
    given |= {f"k{number}": number for number in range(92)}
    request = sent(session, build(PyTorch, hyperparameters=dict(given)))

    assert [2500, 2498] == [len(request["a"]), len(request["c"])]
    assert given == {name: json.loads(text) for name, text in request.items()}


@pytest.mark.parametrize(
    ("changes", "hyperparameters", "faults"),
    [
        ({}, {"a": "x" * 2499}, [f"hyperparameters['a'] {TOO_LONG}"]),
        ({}, {"a": "😀" * 208 + "xyz"}, [f"hyperparameters['a'] {TOO_LONG}"]),
        ({}, {"n" * 257: 1}, ["a name of hyperparameters has 257 characters: SageMaker allow"]),
        ({}, {f"k{n}": n for n in range(101)}, ["hyperparameters has 101 entries: SageMaker"]),
        ({}, {"a": b"x"}, ["hyperparameters['a'] is b'x': the SDK cannot encode it as JSON"]),
        ({}, {"a": "x\0"}, [rf"hyperparameters['a'] is 'x\x00': {NUL}"]),
        ({}, {"a": {"k": "\0"}}, [rf"hyperparameters['a'] is {{'k': '\x00'}}: {NUL}"]),
        ({}, {"a\0": 1}, [rf"hyperparameters has the name 'a\x00': {NUL}"]),
        ({}, {"a": "\ud83d"}, [rf"hyperparameters['a'] is '\ud83d': {HALF}"]),
        ({}, {"\udc80": 1}, [rf"hyperparameters has the name '\udc80': {HALF}"]),
        ({}, {1: "a", "1": "b"}, ["hyperparameters has the name '1' twice: the keys are equal"]),
        ({}, {"sagemaker_q": 1}, ["hyperparameters has the name 'sagemaker_q': names that beg"]),
        (
            {"distribution": DataParallel()},
            {KEY: "{}"},
            [f"hyperparameters has the name {KEY!r}: sagemaker-dist sends the options of"],
        ),
        (
            {},
            {f"k{number}": "x" * 2000 for number in range(70)},
            ["hyperparameters take 140900 bytes together: the script gets them in one environment"],
        ),
    ],
)
def test_what_cannot_arrive_is_refused_by_name(build, session, changes, hyperparameters, faults):
    """Wrong values are refused when the estimator is built, before any upload."""
    with pytest.raises(OptionError) as caught:
        build(PyTorch, hyperparameters=hyperparameters, **changes)
    found = [str(each) for each in getattr(caught.value, "faults", [caught.value])]

    assert faults == [text[: len(fault)] for text, fault in zip(found, faults, strict=True)]
    assert [] == session.requests


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\u2028b"])
def test_a_line_break_needs_a_source_dir(build, session, value):
    """A line break is refused where the SDK does not encode values as JSON."""
    with pytest.raises(OptionError, match="SageMaker allows no line break in it"):
        build(Estimator, source_dir=None, hyperparameters={"a": value})

    assert {"a": json.dumps(value)} == sent(session, build(Estimator, hyperparameters={"a": value}))


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("true", "True"),
        ("null", "None"),
        ('"x"', "x"),
        ('{"a": 1}', "a=1"),
    ],
)
def test_text_that_looks_like_json_needs_a_source_dir(build, session, value, got):
    """Text that looks like JSON is refused where the SDK sends it unchanged."""
    why = f"the text is read as JSON, and the script gets {got!r}"
    built = build(Estimator, source_dir=None)
    built.set_hyperparameters(a=value)
    with pytest.raises(OptionError, match=re.escape(why)):
        built.fit()
    with pytest.raises(OptionError, match=re.escape(why)):
        build(Estimator, source_dir=None, hyperparameters={"a": value})

    assert {"a": json.dumps(value)} == sent(session, build(Estimator, hyperparameters={"a": value}))


def test_jobs_of_this_machine_are_checked_when_they_are_built(build):
    """Local jobs report all faults at once, without SageMaker's limits."""
    here = {"instance_type": "local_process", "sagemaker_session": None}
    with pytest.raises(OptionErrors) as caught:
        build(PyTorch, hyperparameters={"a": b"x", "b": "x\0", "c": "x" * 9999}, **here)

    assert ["hyperparameters['a'] is", "hyperparameters['b'] is"] == [
        str(each)[:23] for each in caught.value.faults
    ]


def test_what_was_set_after_building_is_checked_by_fit(build, session):
    """fit checks hyperparameters that set_hyperparameters has changed."""
    built = build(Estimator)
    built.set_hyperparameters(fine="it's", bad="x\0y")
    with pytest.raises(OptionError, match=r"hyperparameters\['bad'\] is 'x.x00y'") as caught:
        built.fit()

    assert "fine" not in str(caught.value)
    assert [] == session.requests


def test_an_image_of_its_own_gets_what_no_command_line_carries(build, session):
    """Without a script every value is allowed: the image's program reads SageMaker's file."""
    changes = {"entry_point": None, "source_dir": None}
    request = sent(session, build(Estimator, hyperparameters={"two words": "a\0b"}, **changes))

    assert {"two words": "a\0b"} == request
