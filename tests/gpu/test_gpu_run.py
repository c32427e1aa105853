# SPDX-License-Identifier: Apache-2.0
"""`make gpu` without a GPU: its logic, with steps that pass, fail, hang and are interrupted."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from gpu_run import __main__ as command
from gpu_run import report, results
from gpu_run.interpreter import Interpreter
from gpu_run.machine import Machine
from gpu_run.parts import PARTS, Place
from gpu_run.report import PartReport, StepReport
from gpu_run.results import Result

from sagemaker_dist.errors import SetupError

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT)])
MACHINE = Machine(
    processor="a processor",
    cores=2,
    memory_gib=24,
    kernel="Linux 6",
    python="3.11",
    gpus=("a GPU, 80 GiB, sm_90",),
    driver="580",
    torch="2.13.0",
    cuda="13.0",
    nccl="2.28.9",
    no_namespaces="",
)
# One part with the given steps, in a process of its own: what it leaves behind is ended.
DRIVER = """
    import sys
    from pathlib import Path
    from gpu_run import __main__ as command, report, running
    from gpu_run.machine import Machine
    from gpu_run.parts import Part, Place, Step

    def run(seconds, *steps):
        running.adopt_orphans()
        folder = Path(sys.argv[1])
        place = Place(python=Path(sys.executable), device="testdev", root=folder, results=folder,
                      machine=Machine(**{machine!r}))
        part = Part(name="collectives", about="a part", steps=lambda place: list(steps))
        ended = command.run_part(part, place, (), seconds)
        report.keep(folder, ended, command.NAMES)
        print("left:", running.descendants())

    def step(name, code, **how):
        return Step(name=name, command=(sys.executable, "-c", code), **how)
"""


def drive(folder, code, **how):
    """Run code after DRIVER; return its process."""
    driver = textwrap.dedent(DRIVER).replace("{machine!r}", repr(asdict(MACHINE)))
    return subprocess.Popen(
        [sys.executable, "-c", driver + textwrap.dedent(code), str(folder)],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        text=True,
        **how,
    )


def steps_of(folder):
    """The steps in the report, by name: outcomes of results, and what was said."""
    (part,) = json.loads((folder / "report.json").read_text())["parts"]
    return {step["name"]: step["results"] for step in part["steps"]}


def is_running(marker):
    found = subprocess.run(["pgrep", "-f", marker], capture_output=True, check=False)
    return found.returncode == 0


def test_without_a_gpu_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(command, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_run"])

    assert 0 == command.main()
    assert [command.NO_GPU] == capsys.readouterr().out.splitlines()


def test_an_unknown_part_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_run", "collectives", "colectives"])
    with pytest.raises(SystemExit) as raised:
        command.main()

    assert 2 == raised.value.code
    assert "colectives" in capsys.readouterr().err


def test_a_step_that_fails_stops_no_other(tmp_path):
    code = """
        line = '{"name": "a test", "outcome": "%s", "seconds": 1, "said": "because"}'
        run(30,
            step("fails", "print('some words'); raise SystemExit(3)"),
            step("passes", "pass"),
            step("tests", f"print('{line % 'pass'}'); print('{line % 'skip'}')", reads="output"),
            step("silent", "pass", reads="output"),
            step("peer", f"print('{line % 'fail'}'); raise SystemExit(1)", reads="output",
                 is_of_peer=True),
            step("unavailable", "raise SystemExit(1)", unavailable="there is no GPU"))
    """
    process = drive(tmp_path, code)
    printed = process.communicate(timeout=60)[0]
    found = {
        name: [(each["outcome"], each["said"].splitlines()[-1:]) for each in given]
        for name, given in steps_of(tmp_path).items()
    }

    assert "left: []" in printed
    assert [("fail", ["some words"])] == found["fails"]
    assert ["pass"] == [outcome for outcome, _ in found["passes"]]
    assert [("pass", ["because"]), ("skip", ["because"])] == found["tests"]
    assert ["fail"] == [outcome for outcome, _ in found["silent"]]
    assert [("fail", ["because"])] == found["peer"]
    assert [("skip", ["there is no GPU"])] == found["unavailable"]


HANGS = """
import os, subprocess, sys, time
def wait_for_ever():
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        wait_for_ever()  # {marker}
    os._exit(0)
print('{{"name": "a test", "outcome": "pass", "seconds": 1, "said": ""}}', flush=True)
wait_for_ever()
"""


def test_a_hang_is_a_failure_with_stacks_and_leaves_nothing(tmp_path):
    """What passed before counts; steps after it have no time left."""
    marker = f"hang in {tmp_path}"
    hangs = HANGS.format(marker=marker)
    code = f"run(2, step('hangs', {hangs!r}, reads='output'), step('next', 'pass'))"
    process = drive(tmp_path, code)
    printed = process.communicate(timeout=60)[0]
    found = steps_of(tmp_path)

    assert "left: []" in printed
    assert not is_running(marker)
    assert ["pass", "fail"] == [each["outcome"] for each in found["hangs"]]
    assert 2 <= (tmp_path / "hangs.log").read_text().count("in wait_for_ever")
    assert ["fail"] == [each["outcome"] for each in found["next"]]


def test_ctrl_c_leaves_nothing(tmp_path):
    marker = f"interrupted in {tmp_path}"
    hangs = HANGS.format(marker=marker)
    process = drive(tmp_path, f"run(60, step('hangs', {hangs!r}))", stderr=subprocess.PIPE)
    log = tmp_path / "hangs.log"
    until = time.monotonic() + 30
    while not (log.exists() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    assert process.returncode != 0
    assert not is_running(marker)


def part(name, outcome="pass", **how):
    given = (Result(name="a test", outcome=outcome, seconds=1.5, said="a reason"),)
    step = StepReport(name=f"step of {name}", results=given, seconds=2.0, is_of_peer=False)
    how = {"machine": MACHINE, "code": "abc", "device": "cuda", "when": "now", "remarks": ()} | how
    return PartReport(name=name, steps=(step,), **how)


def test_the_report_has_the_parts_of_several_calls(tmp_path):
    report.keep(tmp_path, part("training", "fail"), command.NAMES)
    text = report.keep(tmp_path, part("collectives", "skip"), command.NAMES).read_text()

    assert "| collectives | step of collectives | 0 | 0 | 1 | 2 |" in text
    assert "| training | step of training | 0 | 1 | 0 | 2 |" in text
    assert "a reason: a test" in text
    assert "Not run: pipelines, smdist-pipelines, two-levels, benchmarks, torch-suite." in text
    assert text.index("step of collectives") < text.index("step of training")


@pytest.mark.parametrize(
    "other", [{"code": "def"}, {"machine": replace(MACHINE, gpus=("another",))}]
)
def test_the_report_leaves_out_other_machines_and_other_code(tmp_path, other):
    report.keep(tmp_path, part("training", **other), command.NAMES)
    text = report.keep(tmp_path, part("collectives"), command.NAMES).read_text()

    assert "training" not in text.split("Not run:")[0]


@pytest.mark.parametrize(
    ("outcome", "has_passed"), [("pass", True), ("skip", True), ("fail", False)]
)
def test_a_part_has_passed_if_nothing_has_failed(outcome, has_passed):
    own = part("training", outcome)
    peer = replace(own, steps=tuple(replace(step, is_of_peer=True) for step in own.steps))

    assert has_passed == own.has_passed
    assert peer.has_passed


def test_each_part_names_files_that_exist(tmp_path):
    """On the test device each step can run but those that say why."""
    place = Place(
        python=Path(sys.executable),
        device="testdev",
        root=ROOT,
        results=tmp_path,
        machine=replace(MACHINE, no_namespaces="no root"),
    )
    steps = [step for each in PARTS for step in each.steps(place)]
    files = [word for step in steps for word in step.command if word.startswith("tests/")]

    assert [] == [file for file in files if not (ROOT / file).exists()]
    assert 5 <= len(files)
    assert {"torch-suite-gloo", "torch-suite-smdist"} == {s.name for s in steps if s.unavailable}


def test_two_levels_need_a_gpu_for_each_rank(tmp_path):
    (part,) = [each for each in PARTS if each.name == "two-levels"]
    said = []
    for count in (3, 4):
        machine = replace(MACHINE, gpus=("a GPU",) * count)
        place = Place(
            python=Path("python"), device="cuda", root=ROOT, results=tmp_path, machine=machine
        )
        said += [step.unavailable for step in part.steps(place)]

    assert ["it needs 4 GPUs, and there are 3", ""] == said


TESTS = """
    import pytest
    def test_passes(): pass
    @pytest.mark.skip(reason="a reason")
    def test_skips(): pass
    def test_fails(): assert 1 == 2
    @pytest.fixture
    def broken(): raise ValueError("a fault")
    def test_breaks(broken): pass
"""


def test_results_of_pytest_are_written_at_once(tmp_path):
    file = tmp_path / "results.jsonl"
    (tmp_path / "test_some.py").write_text(textwrap.dedent(TESTS))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "gpu_run.record_results",
            "-p",
            "no:cacheprovider",
            ".",
        ],
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "SMDIST_TEST_RESULTS": str(file)},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    found = {each.name.split("::")[1]: each for each in results.read(file)}

    assert ["pass", "skip", "fail", "fail"] == [
        found[f"test_{name}"].outcome for name in ("passes", "skips", "fails", "breaks")
    ]
    assert "a reason" == found["test_skips"].said
    assert "assert 1 == 2" in found["test_fails"].said


def test_all_that_is_missing_is_named(tmp_path, monkeypatch):
    """Packages of the interpreter, and tools that build, each in one error."""
    interpreter = Interpreter(tmp_path)
    interpreter.python = Path(sys.executable)
    monkeypatch.setattr("gpu_run.interpreter._NEEDED", {"torch": "torch", "a-b": "a_b", "c": "c_d"})
    with pytest.raises(SetupError) as packages:
        interpreter._check_packages()
    monkeypatch.setattr(interpreter, "_tool", lambda name: None)
    monkeypatch.setattr("gpu_run.interpreter.shutil.which", lambda name, path=None: None)
    with pytest.raises(SetupError) as tools:
        interpreter._tools()

    assert (("a-b", "c"), "missing") == (packages.value.about, packages.value.kind)
    assert ("cmake", "ninja or make", "a C++20 compiler") == tools.value.about[:3]


def test_a_build_that_takes_too_long_ends_with_its_compilers(tmp_path):
    """It is no fault of the torch that was found."""
    code = """
        from gpu_run import interpreter
        from sagemaker_dist.errors import SetupError

        class Slow(interpreter.Interpreter):
            def prepare(self, wheels):
                try:
                    interpreter._run(["sh", "-c", "sleep 600 & wait"], 0.5, "a build", "a hint")
                except SetupError as error:
                    blames_torch = error.hint == "a hint"
                    print(error.kind, blames_torch, "began:", len(running.descendants()))
                    raise

        command.Interpreter = Slow
        sys.argv[1:] = ["--device", "testdev"]
        print("exit code:", command.main(), "left:", running.descendants())
    """
    said = drive(tmp_path, code, stderr=subprocess.DEVNULL).communicate(timeout=60)[0]

    assert ["late False began: 1", "exit code: 2 left: []"] == said.splitlines()[-2:]


def test_wheels_are_installed_for_the_environment_alone(tmp_path):
    """Those that tests need; others of the folder are for them to depend on."""
    wheels, folder = tmp_path / "wheels", tmp_path / "gpu"
    wheels.mkdir()
    for name in ("numpy", "unneeded"):
        with zipfile.ZipFile(wheels / f"{name}-99.0-py3-none-any.whl", "w") as wheel:
            about = f"{name}-99.0.dist-info"
            wheel.writestr(f"{name}/__init__.py", "__version__ = '99.0'\n")
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n"
            )
            wheel.writestr(
                f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{about}/RECORD", "")
    folder.mkdir()
    interpreter = Interpreter(folder)
    interpreter._make()
    interpreter._install(wheels)
    code = (
        "import importlib.util as u, numpy, pytest; print(numpy.__file__, u.find_spec('unneeded'))"
    )
    printed = subprocess.check_output([interpreter.python, "-c", code], text=True, timeout=60)

    assert f"{folder}/packages/numpy/__init__.py None\n" == printed


def test_the_runtime_is_laid_out_apart_from_the_checkout(tmp_path):
    """With what was built, and with the versions that ranks compare; a second time as well."""
    built = tmp_path / "runtime" / "bindings" / "torch"
    built.mkdir(parents=True)
    for name in ("_C.so", "built_for_torch.txt"):
        (built / name).write_text("2.13.0\n")
    interpreter = Interpreter(tmp_path)
    for _ in range(2):
        interpreter._lay_out()
    site = tmp_path / "site"
    code = "import smdist; print(smdist.__file__, smdist.__version__)"
    printed = subprocess.check_output(
        [sys.executable, "-S", "-c", code],
        env=os.environ | {"PYTHONPATH": f"{site}"},
        text=True,
        timeout=60,
    )

    assert f"{site}/smdist/__init__.py 0.1.0\n" == printed
    assert {"_C.so", "built_for_torch.txt"} <= {
        each.name for each in (site / "smdist" / "dataparallel" / "torch").iterdir()
    }


def test_a_folder_of_wheels_must_exist(tmp_path):
    with pytest.raises(SetupError) as raised:
        Interpreter(tmp_path)._install(tmp_path / "wheels")

    assert str(tmp_path / "wheels") in raised.value.what
