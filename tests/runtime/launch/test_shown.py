# SPDX-License-Identifier: Apache-2.0
"""What the log shows of the script's command line."""

import pytest

from sagemaker_dist.contract.redaction import without_login
from smdist.launch.redact import shown_command


@pytest.mark.parametrize(
    ("hyperparameters", "shown"),
    [
        ({"lr": 0.1, "name": "it's"}, """train.py --lr 0.1 --name 'it'"'"'s'"""),
        ({"aa": "one\ntwo\r\x1b[31m\u202e"}, r"train.py --aa 'one\ntwo\r\x1b[31m\u202e'"),
        ({"aa": "héllo 😀"}, "train.py --aa 'héllo 😀'"),
        ({"hf_token": "hf_abc", "api_key": "k"}, "train.py --api_key '***' --hf_token '***'"),
        ({"DB-PASSWORD": "x", "a_secret": "y"}, "train.py --DB-PASSWORD '***' --a_secret '***'"),
        ({"secret": "", "max_tokens": 512}, "train.py --max_tokens 512 --secret ''"),
        ({"wandbApiKey": "k", "pwd": "x"}, "train.py --pwd '***' --wandbApiKey '***'"),
        ({"password_db": "p", "token": 7}, "train.py --password_db '***' --token 7"),
        ({"cfg": {"token": "abc", "lr": 1}}, "train.py --cfg 'lr=1,token=***'"),
        ({"secret_key": ["s"], "tokens": []}, "train.py --secret_key '***' --tokens '[]'"),
        ({"db": "postgres://u:pw@h/x"}, "train.py --db postgres://***@h/x"),
        ({"tokenizer": "bert", "keys": "a"}, "train.py --keys a --tokenizer bert"),
    ],
)  # fmt: skip
def test_a_command_is_one_line_without_secrets(hyperparameters, shown):
    assert shown == shown_command("train.py", hyperparameters)


def test_a_uri_is_shown_without_its_login():
    assert "at https://***@host:1/x" == without_login("at https://me:pw@host:1/x")
    assert "mail me@host" == without_login("mail me@host")
