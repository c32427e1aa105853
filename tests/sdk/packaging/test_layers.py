# SPDX-License-Identifier: Apache-2.0
"""Display of a push, in a pipe and on a terminal."""

from sagemaker_dist.packaging.layer_progress import show

MESSAGES = [
    {"status": "The push refers to repository [host/name]"},
    {"status": "Pushing", "progressDetail": {"current": 1, "total": 2}, "id": "aaa"},
    {"status": "Layer already exists", "progressDetail": {}, "id": "bbb"},
    {"status": "Pushed", "progressDetail": {}, "id": "aaa"},
    {"progressDetail": {}, "aux": {"Tag": "1", "Digest": "sha256:1", "Size": 1}},
]


def test_lines_in_a_pipe(capsys):
    """Without a terminal each layer is printed as one line, and every message is passed on."""
    assert MESSAGES == list(show(MESSAGES))
    assert ["bbb: Layer already exists", "aaa: Pushed"] == capsys.readouterr().err.splitlines()


def test_bars_on_a_terminal(capsys, monkeypatch):
    """On a terminal each layer has one progress bar, which ends full."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")

    assert MESSAGES == list(show(MESSAGES))
    last = capsys.readouterr().err.rpartition("aaa")[2].splitlines()
    assert "2/2 bytes" in last[0]
    assert "Pushed" in last[0]
    assert "bbb" in last[1]
