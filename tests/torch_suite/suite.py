# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own suite of distributed tests, with ranks of a backend of choice.

    python tests/torch_suite/suite.py smdist                     # what Gloo passes
    python tests/torch_suite/suite.py smdist --ranks 8           # what needs that many
    python tests/torch_suite/suite.py gloo --everything          # how the lists were made
    python tests/torch_suite/suite.py smdist test_barrier ...    # some of it
    python tests/torch_suite/suite.py smdist --planted           # what must not pass
    python tests/torch_suite/suite.py gloo --everything --on-gpu      # on GPUs: `make gpu`
    python tests/torch_suite/suite.py smdist --on-gpu --passes-of gloo.jsonl

The suite ships in torch's wheel; nothing of it is copied. It decides by name which
tests a backend has to pass. So that ours has to pass what Gloo has to, the suite is
read under Gloo's name and run under ours. Ranks are forked from a process that has
imported torch, since that costs seconds.

Prints one line of JSON for each test: name, outcome (pass, skip or fail), seconds,
and what was said; the stacks of ranks that hang are on stderr. Exits with 1 if a test
fails, and, unless --everything is given, if one skips itself.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).parent
RANKS = (3, 4, 8)  # three run most of the suite; some tests ask for four, or for eight
DEADLINE_SECONDS = 40  # of one test; a group's own timeout is 60, so that a hang shows its stacks


def names_in(file: str) -> list[str]:
    """The tests a list names; what follows a name on its line is a remark."""
    lines = (HERE / file).read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def names_passed(file: Path) -> list[str]:
    """The tests that another backend has passed, from the lines that it printed.

    Raises:
        SystemExit: It has passed none, so that nothing would be compared.
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    results = [json.loads(line) for line in lines if line.startswith("{")]
    passed = [each["name"] for each in results if each["outcome"] == "pass"]
    if not passed:
        raise SystemExit(f"no test has passed in {file}, so there is nothing to compare with")
    return passed


def names_for_gpus() -> list[str]:
    """The tests that need GPUs and that Gloo may run, as their decorators say."""
    found = importlib.util.find_spec("torch.testing._internal.distributed.distributed_test")
    functions = ast.walk(ast.parse(Path(found.origin).read_text(encoding="utf-8")))
    return [
        each.name
        for each in functions
        if isinstance(each, ast.FunctionDef) and each.name.startswith("test_") and is_for_gpus(each)
    ]


def is_for_gpus(test: ast.FunctionDef) -> bool:
    """Whether a test's decorators ask for GPUs, and do not refuse Gloo or Linux."""
    decorators = [ast.unparse(each) for each in test.decorator_list]
    is_refused = any(
        ("nccl'" in each and "gloo" not in each)
        or each.startswith(("unittest.skip(", "unittest.skipIf(IS_LINUX"))
        for each in decorators
    )
    return not is_refused and any("gpu" in each or "cuda" in each for each in decorators)


def prepare(folder: str, ranks: int, deadline_seconds: int) -> None:
    """What the suite expects of whoever runs it; it is read under Gloo's name."""
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(ranks),
        TEMP_DIR=folder,
        INIT_METHOD="file://",  # each test has a file of its own, which its set-up names
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(deadline_seconds),
        OMP_NUM_THREADS="1",
        # A process that has started CUDA cannot fork ranks that use it; NVML counts GPUs without.
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
        PYTHONPATH=os.pathsep.join(sys.path),  # for the server that ranks are forked from
    )
    if importlib.util.find_spec("expecttest") is None:
        sys.path.append(str(HERE / "without_expecttest"))
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)


def ask_for(backend: str, planted: bool, on_gpu: bool) -> type[unittest.TestCase]:
    """The suite's class, with its ranks forked from a process that has read it."""
    os.environ["SMDIST_SUITE_BACKEND"] = backend
    if on_gpu:
        os.environ["SMDIST_SUITE_SHARED_GPUS"] = "1"
        os.environ["PYTHONPATH"] += f"{os.pathsep}{HERE.parent / 'support'}"
    multiprocessing.get_context("forkserver").set_forkserver_preload(["suite_case"])
    from planted_case import PlantedCase
    from suite_case import SuiteCase

    return PlantedCase if planted else SuiteCase


class Report(unittest.TestResult):
    """Writes a line for each test that ends."""

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802  unittest's own name
        super().startTest(test)
        self._begin = time.monotonic()

    def _say(self, test: unittest.TestCase, outcome: str, said: str = "") -> None:
        seconds = round(time.monotonic() - self._begin, 1)
        name = test.id().rsplit(".", 1)[-1]
        line = {"name": name, "outcome": outcome, "seconds": seconds, "said": said}
        print(json.dumps(line), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._say(test, "pass")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._say(test, "skip", reason)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._say(test, "fail", self.failures[-1][1])

    def addError(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        super().addError(test, err)
        self._say(test, "fail", self.errors[-1][1])


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder, options.ranks, options.deadline_seconds)
        case = ask_for(options.backend, options.planted, options.on_gpu)
        names = options.names or default_names(case, options)
        report = Report()
        unittest.TestSuite(case(name) for name in names).run(report)
    skipped = report.skipped and not options.everything
    return 0 if report.wasSuccessful() and not skipped else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backend", choices=["gloo", "smdist"])
    parser.add_argument("names", nargs="*", help="default: what Gloo passes")
    parser.add_argument("--ranks", type=int, choices=RANKS, default=RANKS[0])
    parser.add_argument("--everything", action="store_true", help="also what Gloo skips")
    parser.add_argument("--planted", action="store_true", help="tests that must not pass")
    parser.add_argument(
        "--on-gpu", action="store_true", help="those that need a GPU; ranks share it"
    )
    parser.add_argument("--passes-of", type=Path, help="results of another backend to compare with")
    parser.add_argument("--deadline-seconds", type=int, default=DEADLINE_SECONDS)
    return parser.parse_args()


def default_names(case: type[unittest.TestCase], options: argparse.Namespace) -> list[str]:
    """All tests there are, the planted ones, or what Gloo passes and others can."""
    alone = names_in("gloo_alone.txt") if options.backend != "gloo" else []
    if options.passes_of:
        return [name for name in names_passed(options.passes_of) if name not in alone]
    if options.on_gpu:
        return names_for_gpus()
    if options.everything:
        return unittest.TestLoader().getTestCaseNames(case)
    if options.planted:
        return [name for name in vars(case) if name.startswith("test_")]
    passes = names_in(f"passes_with_gloo_{options.ranks}.txt")
    return [name for name in passes if name not in alone]


if __name__ == "__main__":
    sys.exit(main())
