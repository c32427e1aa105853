# SPDX-License-Identifier: Apache-2.0
"""Output arrives whole, and a reader that does not read delays no other output."""

import fcntl
import os
import threading
import time

from smdist.launch.nonblocking_writer import MAX_WAITING_BYTES, BackgroundWriter, write_whole


def test_writing_survives_a_reader_that_left():
    source, target = os.pipe()
    os.close(source)
    write_whole(target, b"text", None)
    os.close(target)


def test_writing_waits_for_a_full_pipe():
    """A pipe that does not block loses nothing."""
    source, target = os.pipe()
    os.set_blocking(target, False)
    data = b"x" * 300_000
    pid = os.fork()
    if not pid:
        write_whole(target, data, None)
        os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as file:
        assert data == file.read()
    os.waitpid(pid, 0)


def test_what_is_not_read_in_time_is_lost():
    source, target = os.pipe()
    began = time.monotonic()
    write_whole(target, b"x" * 300_000, None, seconds=0.3)

    assert 0.2 < time.monotonic() - began < 2.0
    os.close(source)
    os.close(target)


def test_nobody_holds_the_lock_while_nobody_reads(tmp_path):
    """The other stream of the host may have a reader."""
    (tmp_path / "lock").touch()
    source, target = os.pipe()
    writer = BackgroundWriter(target, tmp_path / "lock")
    writer.put(b"line\n" * MAX_WAITING_BYTES)

    assert writer.is_full
    assert not writer.wait(0.3)
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(source)

    assert writer.wait(5)
    os.close(target)


def test_lines_of_several_writers_stay_whole(tmp_path):
    (tmp_path / "lock").touch()
    source, target = os.pipe()
    lines = [bytes([letter]) * 10_000 + b"\n" for letter in b"abc"]
    writers = [BackgroundWriter(target, tmp_path / "lock") for _ in lines]
    for writer, line in zip(writers, lines, strict=True):
        writer.put(line * 20)
    ending = threading.Thread(target=lambda: [all(o.wait(20) for o in writers), os.close(target)])
    ending.start()
    with os.fdopen(source, "rb") as file:
        seen = file.readlines()
    ending.join()

    assert sorted(lines * 20) == sorted(seen)
