# SPDX-License-Identifier: Apache-2.0
"""The last traceback on stderr becomes one error and one frame."""

import subprocess
import sys

import pytest

from smdist.launch.traceback_parser import find_culprit

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
CALL = """\
Traceback (most recent call last):
  File "/opt/ml/code/train.py", line 19, in fit
    model.fit(x, y)
  File "/usr/lib/python3/tensorflow/python/eager/execute.py", line 53, in quick_execute
    tensors = pywrap_tfe.TFE_Py_Execute(ctx._handle, device_name, op_name,
  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
tensorflow.python.framework.errors_impl."""
GRAPH = """\
Error: Graph execution error:

Detected at node layer/Gather defined at (most recent call last):
  File "/opt/ml/code/net.py", line 8, in call

  File "<string>", line 188, in gather

{message}
\t [[{{{{node layer/Gather}}}}]] [Op:__inference_multi_step_on_iterator_962]
"""
PEER = "rank 1 on algo-1 raised ValueError: bad record 17"
BEFORE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795337685.464837   22672 port.cc:153] oneDNN custom operations are on.
I0000 00:00:1795337137.937952    3853 cpu_feature_guard.cc:227] This binary is optimized
To enable the following instructions: AVX2, rebuild TensorFlow with the compiler flags.
2024-01-02 03:04:05.678901: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.
E0000 00:00:1795337137.937952    3853 cuda_dnn.cc:8579] Unable to register cuDNN factory
"""
TENSORFLOW = {
    "a graph": (
        f"{CALL}InvalidArgument{GRAPH.format(message='indices[12,2] = 5000 is not in [0, 100)')}",
        "tf.errors.InvalidArgumentError: indices[12,2] = 5000 is not in [0, 100)",
        "net.py:8 in call",
    ),
    "a peer": (
        f"{CALL}Aborted{GRAPH.format(message=PEER)}",
        f"tf.errors.AbortedError: {PEER}",
        "net.py:8 in call",
    ),
    "several errors": (
        CALL
        + "Internal"
        + GRAPH.format(
            message="2 root error(s) found.\n  (0) INTERNAL:  no room\n\t [[{{node a}}]]\n"
            "\t [[b/_5]]\n  (1) INTERNAL:  no air\n0 successful operations."
        ),
        "tf.errors.InternalError: no room",
        "net.py:8 in call",
    ),
    "an eager operation": (
        f"{CALL}NotFoundError: {{{{function_node __wrapped__Read_device_/job:x}}}} no file"
        " [Op:ReadFile] name: \n",
        "tf.errors.NotFoundError: no file",
        "train.py:19 in fit",
    ),
    "an operation below Keras": (
        f"{CALL}InvalidArgumentError: Exception encountered when calling Embedding.call().\n\n"
        "\x1b[1m{{function_node x}} indices[0] = 7 is not in [0, 3) [Op:Gather]\x1b[0m\n\n"
        "Arguments received by Embedding.call():\n  \u2022 inputs=tf.Tensor(shape=(1, 1))\n",
        "tf.errors.InvalidArgumentError: Exception encountered when calling Embedding.call().\n"
        "indices[0] = 7 is not in [0, 3)",
        "train.py:19 in fit",
    ),
    "Python called by a dataset": (
        f"{CALL}InvalidArgumentError: {{{{function_node x}}}} ValueError: bad record 17\n"
        f'{HEADER}\n\n  File "/lib/script_ops.py", line 269, in __call__\n    ret = func(*args)\n'
        '\n  File "/opt/ml/code/data.py", line 26, in gen\n    raise ValueError("bad")\n\n'
        "ValueError: bad record 17\n\n\n\t [[{{node PyFunc}}]] [Op:IteratorGetNext] name: \n",
        "tf.errors.InvalidArgumentError: ValueError: bad record 17",
        "data.py:26 in gen",
    ),
    "Python that becomes a graph": (
        f'{HEADER}\n  File "/opt/ml/code/train.py", line 15, in main\n    step(x)\n'
        "ValueError: in user code:\n\n"
        '    File "/opt/ml/code/train.py", line 12, in step  *\n        return inner(x)\n'
        '    File "/opt/ml/code/net.py", line 14, in inner  *\n        raise ValueError("bad")\n'
        "\n    ValueError: bad record 17\n\n",
        "ValueError: bad record 17",
        "net.py:14 in inner",
    ),
    "a message that nothing is written around": (
        f"{CALL}InvalidArgumentError: sizes differ\nx == y did not hold\n[[0]]\n",
        "tf.errors.InvalidArgumentError: sizes differ\nx == y did not hold\n[[0]]",
        "train.py:19 in fit",
    ),
    "an assertion": (
        f"{CALL}InvalidArgumentError: labels out of range\nCondition x == y did not hold.\n"
        "First 1 elements of x:\n[1]\nFirst 1 elements of y:\n[2]\n",
        "tf.errors.InvalidArgumentError: labels out of range\nCondition x == y did not hold.\n"
        "First 1 elements of x: [1]\nFirst 1 elements of y: [2]",
        "train.py:19 in fit",
    ),
    "an assertion of many values": (
        f"{CALL}InvalidArgumentError: too big\nCondition x < y did not hold.\n"
        "Indices of first 2 different values:\n[[0]\n [2]]\nCorresponding x values:\n[1 3]\n"
        "Corresponding y values:\n[0 2]\nFirst 3 elements of x:\n[1 5 3]\n",
        "tf.errors.InvalidArgumentError: too big\nCondition x < y did not hold.\n"
        "Indices of first 2 different values: [[0] [2]]\nCorresponding x values: [1 3]\n"
        "Corresponding y values: [0 2]",
        "train.py:19 in fit",
    ),
    "an assertion of each element": (
        f"{CALL}InvalidArgumentError: negative.  \nCondition x >= 0 did not hold element-wise:\n"
        "x (shape=(2,) dtype=int32) = \n['1', '-2']\n",
        "tf.errors.InvalidArgumentError: negative.  \nCondition x >= 0 did not hold element-wise:"
        "\nx (shape=(2,) dtype=int32) = ['1', '-2']",
        "train.py:19 in fit",
    ),
    "an assertion within Keras": (
        f"{CALL}InvalidArgumentError: Exception encountered when calling Check.call().\n\n"
        "\x1b[1mCondition x == y did not hold.\nFirst 1 elements of x:\n[1]\x1b[0m\n",
        "tf.errors.InvalidArgumentError: Exception encountered when calling Check.call().\n"
        "Condition x == y did not hold.\nFirst 1 elements of x: [1]",
        "train.py:19 in fit",
    ),
    "the cause of another": (
        f"{CALL}InvalidArgument{GRAPH.format(message='7 is not in [0, 3)')}\n"
        f"The above exception was the direct cause of the following exception:\n\n{PLAIN}",
        "ValueError: boom",
        "train.py:12 in main",
    ),
    "killed after its start": (BEFORE, "", ""),
    "killed later": (f"{BEFORE}epoch 3\n{BEFORE}", "epoch 3", ""),
    "a check that failed": (
        f"{BEFORE}F0000 00:00 9 a.cc:1] Check failed: n > 0\n",
        "F0000 00:00 9 a.cc:1] Check failed: n > 0",
        "",
    ),
}
CASES = {
    "own frame wins": (PLAIN, "ValueError: boom", "train.py:12 in main"),
    "foreign code only": (
        PLAIN.replace("/opt/ml/code", "/elsewhere"),
        "ValueError: boom",
        "nn.py:99 in forward",
    ),
    "a script for AWS's image": (
        PLAIN.replace("ValueError: boom", "ModuleNotFoundError: No module named 'smdistributed'"),
        "ModuleNotFoundError: No module named 'smdistributed'. In this image the package is named"
        " smdist: write smdist instead of smdistributed in the script",
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
    "warnings": (
        "bad --lr\n/opt/ml/code/a b.py:77: UserWarning: Converting a tensor\n  return float(x)\n",
        "bad --lr",
        "",
    ),
    "nothing but a warning": (
        "[rank1]: /usr/lib/stats.py:77: FutureWarning: soon\n[rank1]:   return mean, float(x)\n",
        "",
        "",
    ),
    "Horovod": (
        PLAIN.replace("ValueError: boom", "ModuleNotFoundError: No module named 'horovod'"),
        "ModuleNotFoundError: No module named 'horovod'. Import smdist.dataparallel.torch.horovod,"
        " smdist.dataparallel.tensorflow or smdist.dataparallel.tensorflow.keras as hvd, or install"
        " the package sagemaker-dist-horovod, which gives them Horovod's names",
        "train.py:12 in main",
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


@pytest.mark.parametrize(("stderr", "error", "frame"), TENSORFLOW.values(), ids=TENSORFLOW)
def test_error_and_frame_of_tensorflow(stderr, error, frame):
    """The last line is not the message, and TensorFlow's log lines at its start are no error."""
    assert (error, frame) == find_culprit((BEFORE + stderr).encode(), "/opt/ml/code")


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
