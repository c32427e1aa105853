# SPDX-License-Identifier: Apache-2.0
"""Names that say that their values are nobody's business."""

import pytest

from sagemaker_dist.contract.redaction import is_private, masked, without_login


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "wandbApiKey",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "auth.tokens",
        "db-password",
        "PASSWORD_DB",
        "pwd",
        "google_credentials",
    ],
)
def test_private(name):
    """By the last word, or the first."""
    assert is_private(name)


@pytest.mark.parametrize("name", ["key", "tokenizer", "max_token_length", "monkey", "LOG_LEVEL"])
def test_public(name):
    """A part of a word says nothing."""
    assert not is_private(name)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("token", "abc", "***"),
        ("token", ["abc"], "***"),
        ("max_tokens", 512, 512),
        ("token", "", ""),
        ("token", None, None),
        ("db", {"password": "abc", "host": "there"}, {"password": "***", "host": "there"}),
    ],
)
def test_masked(name, value, shown):
    """Text is hidden; numbers and what is empty are no secrets; tables are looked into."""
    assert shown == masked(name, value)


def test_logins():
    """User and password of a URI."""
    assert "s3://a http://***@b/c" == without_login("s3://a http://me:you@b/c")
