# SPDX-License-Identifier: Apache-2.0
"""Fields of errors: those that a class adds, in JSON and after a copy by pickle."""

import pickle

import pytest

from sagemaker_dist.errors import JobError, OptionError


def test_a_field_of_a_class_is_kept():
    error = pickle.loads(pickle.dumps(JobError("a", "b", "c", kind="lost", cause={"rank": 3})))

    assert {"rank": 3} == error.cause == error.as_dict()["cause"]
    assert "lost" == error.kind


def test_a_field_with_its_default_is_not_in_json():
    assert {} == JobError("a", "b", "c").cause
    assert {"kind", "about", "what", "why", "hint"} == JobError("a", "b", "c").as_dict().keys()


def test_a_field_that_a_class_does_not_have():
    with pytest.raises(TypeError):
        OptionError("a", "b", "c", cause={})
