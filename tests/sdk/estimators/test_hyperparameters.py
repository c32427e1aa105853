# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters reach SageMaker as they were given; values that cannot be passed on are
refused.
"""

import json

import pytest
from error_fields import fields_raised
from hyperparameters import JSON_TEXTS, TEXTS, VALUES, commands

from sagemaker_dist import (
    DataParallel,
    Estimator,
    HuggingFace,
    OptionError,
    PyTorch,
    TensorFlow,
)
from sagemaker_dist.contract import KEY

pytestmark = pytest.mark.timeout(60)

GIVEN = {**TEXTS, **VALUES, **commands("canary")}


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
    ("changes", "hyperparameters", "about", "kind"),
    [
        ({}, {"a": "x" * 2499}, ".a", "too_long"),
        ({}, {"a": "😀" * 208 + "xyz"}, ".a", "too_long"),
        ({}, {"n" * 257: 1}, "." + "n" * 257, "too_long"),
        ({}, {f"k{n}": n for n in range(101)}, "", "too_many"),
        ({}, {"a": b"x"}, ".a", "type"),
        ({}, {"a": "x\0"}, ".a", "nul"),
        ({}, {"a": {"k": "\0"}}, ".a", "nul"),
        ({}, {"a\0": 1}, '."a\0"', "nul"),
        ({}, {"a": "\ud83d"}, ".a", "surrogate"),
        ({}, {"\udc80": 1}, '."\udc80"', "surrogate"),
        ({}, {1: "a", "1": "b"}, ".1", "repeated"),
        ({}, {"sagemaker_q": 1}, ".sagemaker_q", "reserved"),
        ({"distribution": DataParallel()}, {KEY: "{}"}, f".{KEY}", "reserved"),
        ({}, {f"k{number}": "x" * 2000 for number in range(70)}, "", "too_long"),
    ],
)
def test_what_cannot_arrive_is_refused_by_name(
    build, session, changes, hyperparameters, about, kind
):
    """Wrong values are refused when the estimator is built, before any upload."""
    found = fields_raised(lambda: build(PyTorch, hyperparameters=hyperparameters, **changes))

    assert [(f"hyperparameters{about}", kind)] == found
    assert [] == session.requests


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\u2028b"])
def test_a_line_break_needs_a_source_dir(build, session, value):
    """A line break is refused where the SDK does not encode values as JSON."""
    found = fields_raised(lambda: build(Estimator, source_dir=None, hyperparameters={"a": value}))

    assert [("hyperparameters.a", "line_break")] == found
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
    built = build(Estimator, source_dir=None)
    built.set_hyperparameters(a=value)
    with pytest.raises(OptionError) as caught:
        build(Estimator, source_dir=None, hyperparameters={"a": value})

    assert [("hyperparameters.a", "ambiguous")] == fields_raised(built.fit)
    assert str(caught.value) == (
        f"hyperparameters['a'] is {value!r}: without source_dir the text is read as JSON, and the"
        f" script gets {got!r}. Pass source_dir, with which the script gets the text unchanged."
    )
    assert {"a": json.dumps(value)} == sent(session, build(Estimator, hyperparameters={"a": value}))


def test_jobs_of_this_machine_are_checked_when_they_are_built(build):
    """Local jobs report all faults at once, without SageMaker's limits."""
    here = {"instance_type": "local_process", "sagemaker_session": None}
    given = {"a": b"x", "b": "x\0", "c": "x" * 9999}

    assert [("hyperparameters.a", "type"), ("hyperparameters.b", "nul")] == fields_raised(
        lambda: build(PyTorch, hyperparameters=given, **here)
    )


def test_what_was_set_after_building_is_checked_by_fit(build, session):
    """fit checks hyperparameters that set_hyperparameters has changed."""
    built = build(Estimator)
    built.set_hyperparameters(fine="it's", bad="x\0y")

    assert [("hyperparameters.bad", "nul")] == fields_raised(built.fit)
    assert [] == session.requests


def test_an_image_of_its_own_gets_what_no_command_line_carries(build, session):
    """Without a script every value is allowed: the image's program reads SageMaker's file."""
    changes = {"entry_point": None, "source_dir": None}
    request = sent(session, build(Estimator, hyperparameters={"two words": "a\0b"}, **changes))

    assert {"two words": "a\0b"} == request
