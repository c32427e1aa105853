# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters that a shell, a parser or a careless join would change, and their readers.

`READ` is a script that writes the values it received; `differences` compares them with the
values that were passed.
"""

import json
import tarfile

READ = """
import json, os, sys
from pathlib import Path

names = ("SM_HPS", "SM_USER_ARGS", "SM_TRAINING_ENV")
got = {name: os.environ[name] for name in names}
got["argv"] = sys.argv[1:]
got["SM_HP"] = {k: v for k, v in os.environ.items() if k.startswith("SM_HP_")}
host, rank = os.environ["SM_CURRENT_HOST"], os.environ.get("RANK", "")
Path(os.environ["SM_MODEL_DIR"], f"{host}-{rank}.json").write_text(json.dumps(got))
"""

JSON_TEXTS = {
    "true-text": "true",
    "null-text": "null",
    "number-text": "1",
    "float-text": "1.10",
    "list-text": "[1]",
    "object-text": '{"a": 1}',
    "quoted-text": '"x"',
}
TEXTS = {
    **JSON_TEXTS,
    "single": "it's 'quoted'",
    "double": 'say "x"',
    "backslash": "a\\b\\\\c\\n\\",
    "variable": "$HOME ${HOME} $$ $$HOME $",
    "macro": "${local_rank} ${log_dir} %h",
    "percent": "%s %d %(x)s %%",
    "brace": "{} {0} {a,b}",
    "pattern": "* ~ ? [a-z] !!",
    "file": "@/etc/passwd",
    "newline": "a\nb\n\n",
    "return": "a\rb\r\n",
    "tab": "\ta\t",
    "separator": "a\u2028b\u2029c\u0085d",
    "control": "\x01\x1b[31m\x7f",
    "emoji": "😀é e\u0301",
    "right-to-left": "\u202e\u05e9\u05dc",
    "dashes": "--dashes",
    "minus": "-1",
    "bare": "--",
    "empty": "",
    "spaces": "   ",
    "dotted.name": "a.b",
    "under_score": "x",
    "naïve": "ü",
    "日本": "x",
    "quo'te\"d$name": "x",
    "o": "one letter",
}
VALUES = {
    "yes": True,
    "none": None,
    "integer": -7,
    "huge": 10**40,
    "float": 1e-05,
    "not-a-number": float("nan"),
    "infinite": float("inf"),
    "list": [1, "it's", None, "a\nb"],
    "object": {"b": "x y", "a": 1},
}
ARGUMENTS = {  # expected command line, as with SageMaker's toolkit
    "yes": "True",
    "none": "None",
    "integer": "-7",
    "huge": str(10**40),
    "float": "1e-05",
    "not-a-number": "nan",
    "infinite": "inf",
    "list": """[1, "it's", None, 'a\\nb']""",
    "object": "a=1,b=x y",
}


def commands(canary):
    """Return texts that create a file `canary` if anything evaluates them."""
    touch = f"touch {canary}"
    return {
        "substituted": f"$({touch})",
        "backticks": f"`{touch}`",
        "semicolon": f"; {touch}; rm",
        "single-out": f"';{touch};'",
        "double-out": f'x";{touch};"',
        "newline-out": f"\n{touch}\n",
        "redirected": f"> {canary}",
        "piped": f"| tee {canary} &",
        "evaluated": f"__import__('pathlib').Path('{canary}').touch()",
        f"name$({touch.replace(' ', '${IFS}')})": "x",
    }


def read_by(estimator):
    """Return the values that each process of a job received."""
    with tarfile.open(estimator.model_data.removeprefix("file://")) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: json.load(file) for name, file in files.items()}


def differences(given, got):
    """Return the ways in which a name did not arrive as passed, or arrived without being passed."""
    texts = {name: ARGUMENTS.get(name, value) for name, value in given.items()}
    arguments = [
        part
        for name in sorted(texts)
        for part in (f"-{name}" if len(name) == 1 else f"--{name}", texts[name])
    ]
    named = {f"SM_HP_{name.upper()}": _variable(value) for name, value in given.items()}
    training = json.loads(got["SM_TRAINING_ENV"])["hyperparameters"]
    ways = {
        "argv": (arguments, got["argv"]),
        "SM_USER_ARGS": (arguments, json.loads(got["SM_USER_ARGS"])),
        "SM_HPS": (_exact(given), _exact(json.loads(got["SM_HPS"]))),
        "SM_TRAINING_ENV": (_exact(given), _exact(training)),
        "SM_HP": (named, {name: got["SM_HP"].get(name) for name in named}),
    }
    return {way: pair for way, pair in ways.items() if pair[0] != pair[1]}


def _exact(values):
    """Return values with their types, with NaN equal to itself."""
    return {name: repr(_sorted(value)) for name, value in values.items()}


def _sorted(value):
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def _variable(value):
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "" if value is None else str(value)
