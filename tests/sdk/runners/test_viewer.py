# SPDX-License-Identifier: Apache-2.0
"""Display of a job in a terminal and through a pipe."""

import os
import pty
import re
import subprocess
import sys
from datetime import datetime, timezone
from textwrap import dedent

import pytest

from sagemaker_dist.runners import RecordingRunner
from sagemaker_dist.runners.viewer import watch

pytestmark = pytest.mark.timeout(120)


class Scripted(RecordingRunner):
    """Stub runner of a finished job with prepared output and descriptions."""

    def __init__(self, segments, status="Completed", **more):
        super().__init__()
        self.segments, self.status, self.more = segments, status, more

    def describe(self, name):
        then = datetime.now(timezone.utc)
        return {
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.status,
            "CreationTime": then,
            "TrainingEndTime": then,
            "ModelArtifacts": {"S3ModelArtifacts": "file:///model.tar.gz"},
            **self.more,
        }

    def logs(self, name, *, follow=False, new_only=False):
        return iter(self.segments)


def shown(capsys, *segments, **how):
    watch(Scripted(segments, **how), "job", layout="2 hosts")
    return capsys.readouterr().out.splitlines()[1:-1]


def test_heading_and_ending(capsys):
    watch(Scripted([]), "job", layout="2 hosts x 1 rank")

    assert "job  2 hosts x 1 rank\nCompleted after 00:00, model: file:///model.tar.gz\n" == (
        capsys.readouterr().out
    )


def test_failure_points_to_the_logs(capsys):
    watch(Scripted([], status="Failed"), "job")

    assert "Failed after 00:00, logs: nowhere: nothing ran" in capsys.readouterr().out


def test_pipe_gets_plain_lines(capsys):
    """Output to a pipe is not wrapped, and brackets and numbers are not coloured."""
    line = "[algo-2 rank 3] " + "x" * 200 + " [bold]1[/bold]"

    assert [line] == shown(capsys, line + "\n")


def test_pipe_gets_the_last_state_of_a_progress_bar(capsys):
    """A bar that ends in a line break is printed once; a bar that is replaced is not."""
    assert ["[algo-1 rank 0] 100%", "[algo-1 rank 0] text", "[algo-2 rank 1] 7%"] == shown(
        capsys,
        "[algo-1 rank 0] 50%\r",
        "[algo-2 rank 1] 7%\r",
        "[algo-1 rank 0] 100%\r",
        "[algo-1 rank 0] \n",
        "[algo-1 rank 0] 1%\r",
        "[algo-1 rank 0] text\n",
        "[algo-2 rank 1] \n",
    )


def test_terminal_shows_a_coloured_host_and_a_live_line():
    """A terminal shows the host in colour, and bar and state at the bottom."""
    program = """
        import time
        from sagemaker_dist.runners import RecordingRunner
        from sagemaker_dist.runners.viewer import watch

        class Slow(RecordingRunner):
            def logs(self, name, *, follow=False, new_only=False):
                yield "[algo-2 rank 1] hello\\n"
                for step in range(5):
                    yield f"[algo-1 rank 0] step {step}\\r"
                    time.sleep(0.2)

        runner = Slow()
        runner.start({"TrainingJobName": "job", "OutputDataConfig": {"S3OutputPath": "file:///o"}})
        watch(runner, "job", layout="2 hosts")
    """
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(program)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"},
    )
    os.close(terminal)
    seen = b""
    try:
        while data := os.read(master, 1 << 16):
            seen += data
    except OSError:  # Linux: EIO once the other end is closed
        pass
    finally:
        os.close(master)
        process.wait()
    text = seen.decode()

    assert "\x1b[32m[algo-2 rank 1]\x1b[0m hello" in text
    assert re.search(r"step 3\b", text)
    assert re.search(r"00:0\d  Completed  2 hosts", text)
    assert "Completed\x1b[0m after 00:0" in text


def test_what_was_shown_is_not_shown_again_after_an_interrupt(runner, request_for, script, capsys):
    """With new_only, output before the stop is not shown again; without it, all is shown."""
    script("""
        import signal, sys, time
        def stop(*_):
            time.sleep(0.5)
            print("saved")
            sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        print("ready")
        time.sleep(100)
    """)
    name = runner.start(request_for(hosts=1))
    next(segment for segment in runner.logs(name, follow=True) if "ready" in segment)
    runner.stop(name)
    watch(runner, name, new_only=True)
    rest = capsys.readouterr().out
    watch(runner, name)
    whole = capsys.readouterr().out

    assert ("ready" not in rest, "saved" in rest) == (True, True)
    assert "ready" in whole


def test_the_state_is_not_read_for_every_line(capsys):
    class Counting(Scripted):
        looks = 0

        def describe(self, name):
            self.looks += 1
            return super().describe(name)

    runner = Counting(["line\n"] * 10_000)
    watch(runner, "job")

    assert 10_000 <= len(capsys.readouterr().out.splitlines())
    assert runner.looks < 100


def test_ending_names_no_model_where_none_was_saved(capsys):
    watch(Scripted(["[sagemaker-dist] no model was saved: why\n"]), "job")

    assert "Completed after 00:00, no model was saved" == capsys.readouterr().out.splitlines()[-1]


def test_output_that_the_logs_lack_is_told(capsys):
    watch(Scripted([], LostLogBytes=1234567), "job")

    assert "the logs lack 1,234,567 bytes of the hosts' output: the disk was full" in (
        capsys.readouterr().out
    )
