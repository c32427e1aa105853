# SPDX-License-Identifier: Apache-2.0
"""What other processes of this machine, and later readers, see of a job's secrets."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import psutil
import pytest
from channels import channel
from local_jobs import log, run, wait_until

from sagemaker_dist.runners import TERMINAL, LocalRunner

pytestmark = pytest.mark.timeout(120)

VALUE = "green-and-secret"
CREDENTIAL = "credential-of-the-session"
WAIT = """
    import os, time
    assert os.environ["COLOUR"] == "green-and-" + "secret"
    print("ready")
    while not (base.parents[1] / "go").exists():
        time.sleep(0.02)
"""


def files_with(folder, text):
    """Return the files below a folder that contain a text."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path.name for path in files if text.encode() in path.read_bytes()]


def environments(folder):
    """Return the first environment of each process that belongs to the job in `folder`."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(folder) in command and process.pid != os.getpid():
            try:
                found[process.pid] = process.environ()
            except psutil.AccessDenied:
                found[process.pid] = {}
    return found


def test_variables_of_a_job_are_in_no_file(runner, request_for, script):
    """Hosts get them, the description names them, and no file of the job ever has a value."""
    script(WAIT)
    name = runner.start(request_for(hosts=1, Environment={"COLOUR": VALUE}))
    folder = runner.root / name
    wait_until(lambda: "ready" in log(runner))
    during = files_with(folder, VALUE)
    (folder / "go").touch()
    wait_until(lambda: runner.describe(name)["TrainingJobStatus"] in TERMINAL)

    assert "Completed" == runner.describe(name)["TrainingJobStatus"], log(runner)
    assert {"COLOUR": "***"} == runner.describe(name)["Environment"]
    assert [] == during == files_with(folder, VALUE)


def test_the_files_of_a_job_are_the_users_alone(runner, request_for):
    before = os.umask(0o022)
    try:
        run(runner, request_for(hosts=1))
    finally:
        os.umask(before)
    folder = runner.root / "job"

    assert 0o700 == folder.stat().st_mode & 0o777
    for name in ("job.json", "state.json"):
        assert 0o600 == (folder / name).stat().st_mode & 0o777


def test_credentials_of_a_download_are_in_no_environment(tmp_path, request_for, script):
    """A rank that reads /proc/PID/environ of the supervisor and the others does not find them."""
    script(WAIT)
    runner = LocalRunner(root=tmp_path / "jobs", environment={"AWS_SECRET_ACCESS_KEY": CREDENTIAL})
    request = request_for(hosts=1, Environment={"COLOUR": VALUE})
    name = runner.start(request)
    folder = runner.root / name
    wait_until(lambda: "ready" in log(runner))
    seen = environments(folder)
    (folder / "go").touch()
    wait_until(lambda: runner.describe(name)["TrainingJobStatus"] in TERMINAL)

    assert seen
    assert CREDENTIAL not in str(seen)
    assert [] == files_with(folder, CREDENTIAL)


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """Return a function that runs a program at the end of each Python process of a job whose
    command has a word; `first` is the environment with which the process began.
    """
    folder = tmp_path / "spy"
    folder.mkdir()
    paths = [str(folder), os.environ["PYTHONPATH"]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    def at_exit(word, program):
        (folder / "program.py").write_text(dedent(program))
        (folder / "sitecustomize.py").write_text(
            "import atexit, os, runpy, sys\n"
            f"if {word!r} in ' '.join(sys.orig_argv):\n"
            "    known = {'first': dict(os.environ)}\n"
            f"    atexit.register(runpy.run_path, {str(folder / 'program.py')!r}, known)\n"
        )

    return at_exit


def test_a_download_has_its_credentials_in_no_environment(
    tmp_path, request_for, put, spy, monkeypatch
):
    """They reach boto3 all the same, before what the driver has; an empty one is removed."""
    put(a="1")
    seen = tmp_path / "seen"
    spy(
        "downloads",
        f"""
        import json, os, pathlib
        pathlib.Path({str(seen)!r}).write_text(json.dumps([first, dict(os.environ)]))
        """,
    )
    monkeypatch.setenv("AWS_PROFILE", "there-is-none")
    given = {"AWS_SECRET_ACCESS_KEY": CREDENTIAL, "AWS_PROFILE": ""}
    runner = LocalRunner(root=tmp_path / "jobs", environment=given)
    described = run(runner, request_for(hosts=1, InputDataConfig=[channel("s3://bucket")]))
    first, last = json.loads(seen.read_text())

    assert "Completed" == described["TrainingJobStatus"], log(runner)
    assert CREDENTIAL not in first.values()
    assert "there-is-none" == first["AWS_PROFILE"]
    assert CREDENTIAL == last["AWS_SECRET_ACCESS_KEY"]
    assert "AWS_PROFILE" not in last


READER = """
import ctypes, os, sys
from sagemaker_dist.runners.local.process_tree import hide_memory

def reads(pid):
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        try:
            open(f"/proc/{pid}/environ", "rb").read()
            open(f"/proc/{pid}/mem", "rb").close()
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def waiting(hides):
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.getuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a program that was started by this user
        if hides:
            hide_memory()
        os.write(tell, b"x")
        os.read(os.pipe()[0], 1)
    os.read(ready, 1)
    return pid

pids = [waiting(False), waiting(True)]
print([reads(pid) for pid in pids])
for pid in pids:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


def test_a_process_of_the_same_user_cannot_read_a_hidden_one():
    """The environment and the memory of the supervisor are closed to the ranks of its job."""
    printed = subprocess.run(
        [sys.executable, "-c", READER], capture_output=True, text=True, timeout=30, check=True
    ).stdout

    assert "[True, False]" == printed.strip()


def test_the_supervisor_hides_its_memory(runner, request_for, spy, tmp_path):
    """Linux is told before the job starts; 0 is what it answers then."""
    spy(
        "supervisor",
        f"""
        import ctypes, pathlib
        is_dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
        pathlib.Path({str(tmp_path / "dumpable")!r}).write_text(str(is_dumpable))
        """,
    )
    run(runner, request_for(hosts=1))
    wait_until((tmp_path / "dumpable").exists)

    assert "0" == (tmp_path / "dumpable").read_text()
