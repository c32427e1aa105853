# SPDX-License-Identifier: Apache-2.0
"""The last traceback on stderr becomes one error and one frame."""

import subprocess
import sys

import pytest

from smdist.launch.culprit import find_culprit

HEADER = "Traceback (most recent call last):"
PLAIN = """\
epoch 1
Traceback (most recent call last):
  File "/opt/ml/code/train.py", line 20, in <module>
    main()
  File "/opt/ml/code/train.py", line 12, in main
    step()
  File "/usr/lib/python3/site-packages/torch/nn.py", line 99, in forward
    raise ValueError("boom")
ValueError: boom
"""
CASES = {
    "own frame wins": (PLAIN, "ValueError: boom", "train.py:12 in main"),
    "foreign code only": (
        PLAIN.replace("/opt/ml/code", "/elsewhere"),
        "ValueError: boom",
        "nn.py:99 in forward",
    ),
    "a script for AWS's image": (
        PLAIN.replace("ValueError: boom", "ModuleNotFoundError: No module named 'smdistributed'"),
        "ModuleNotFoundError: No module named 'smdistributed'. Here it is smdist: rename"
        " smdistributed in the script",
        "train.py:12 in main",
    ),
    "torch names the rank": (
        "".join(f"[rank3]: {line}\n" for line in PLAIN.splitlines()),
        "ValueError: boom",
        "train.py:12 in main",
    ),
    "torch warns afterwards": (
        PLAIN + "[rank3]:[W1204 01:02:03.4 ProcessGroup.cpp:1] Warning: not destroyed\n",
        "ValueError: boom",
        "train.py:12 in main",
    ),
    "the engine speaks afterwards": (
        PLAIN + "smdist: the job is aborted: rank 3 raised ValueError: boom\n",
        "ValueError: boom",
        "train.py:12 in main",
    ),
    "the last of a chain": (
        PLAIN + "\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/opt/ml/code/a.py", line 3, in f\n    x\n'
        "torch.distributed.DistBackendError: lost\n",
        "torch.distributed.DistBackendError: lost",
        "a.py:3 in f",
    ),
    "several lines of message": (
        PLAIN + "expected 2\ngot 3\n",
        "ValueError: boom\nexpected 2\ngot 3",
        "train.py:12 in main",
    ),
    "no message": (
        f'{HEADER}\n  File "/a.py", line 1, in f\n    x\nKeyboardInterrupt\n',
        "KeyboardInterrupt",
        "a.py:1 in f",
    ),
    "no traceback": (
        "usage: train.py\ntrain.py: error: bad --lr\n",
        "train.py: error: bad --lr",
        "",
    ),
    "cut traceback": (
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):",
        "",
    ),
    "nothing": ("", "", ""),
}


@pytest.mark.parametrize(("stderr", "error", "frame"), CASES.values(), ids=CASES)
def test_error_and_frame(stderr, error, frame):
    assert (error, frame) == find_culprit(stderr.encode(), "/opt/ml/code")


def test_bytes_that_are_no_text_do_no_harm():
    stderr = PLAIN.replace("boom", "b\u00f6m").encode("latin-1")

    assert "ValueError: b\ufffdm" == find_culprit(stderr, "/opt/ml/code")[0]


def test_syntax_error_is_found(tmp_path):
    """Python prints it without the usual header."""
    script = tmp_path / "train.py"
    script.write_text("x = 1\ndef f(:\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)
    error, frame = find_culprit(done.stderr, str(tmp_path))

    assert error.startswith("SyntaxError: ")
    assert "train.py:2" == frame


def test_first_exception_of_a_group_is_told(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "def fail(error):\n    try:\n        raise error\n    except Exception as caught:\n"
        "        return caught\n"
        "raise ExceptionGroup('two', [fail(ValueError('boom')), fail(KeyError('x'))])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)

    assert ("ValueError: boom", "train.py:3 in fail") == find_culprit(done.stderr, str(tmp_path))
