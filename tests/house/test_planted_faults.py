# SPDX-License-Identifier: Apache-2.0
"""Operators change what they should, texts stay, and a fault is found again where names changed."""

from textwrap import dedent

import pytest

from benchmarks.planted_faults.cpp_mutants import cpp_mutants
from benchmarks.planted_faults.locating import likest
from benchmarks.planted_faults.python_mutants import is_valid, python_mutants

PYTHON = '''
"""A page of 3 lines."""
__all__ = ["load"]

def load(size: int = 4, *, limit=None) -> list[int]:
    """Return 5 rows."""
    if size >= 0 and limit:
        raise ValueError(f"{size + 1} is too many")
    logger.info("%s rows", size - 1)
    return read(size, limit, strict=True)
'''
CPP = """
constexpr int kMost = 3;
// One of 7 rows.
int load(int size, const Rows& rows) {
  if (size < 0) throw UsageError("it is " + text(size + 1));
  rows.reserve(size);
  rows.add(size, kMost);
  const std::vector<int> held = rows.held();
  return std::min(size, 2);
}
"""


def test_python_mutants():
    """Every operator that applies, and no text, annotation or list of names."""
    found = {(each.line, each.operator, each.change) for each in python_mutants("a.py", PYTHON)}

    assert found == {
        (5, "constant changed", "4 -> 5"),
        (7, "and, or", "and -> or"),
        (7, "boundary", ">= -> >"),
        (7, "comparison flipped", ">= -> <"),
        (7, "condition negated", "size >= 0 and limit -> not (size >= 0 and limit)"),
        (7, "constant changed", "0 -> 1"),
        (8, "exception not raised", 'raise ValueError(f"{size + 1} is too many") -> pass'),
        (10, "arguments swapped", "size, limit -> limit, size"),
        (10, "return replaced", "read(size, limit, strict=True) -> None"),
    }


def test_cpp_mutants():
    """Bodies of functions only; text, declarations and hints of capacity stay."""
    found = {(each.line, each.operator, each.change) for each in cpp_mutants("a.cc", CPP)}

    assert found == {
        (5, "exception not raised", 'throw UsageError("it is " + text(size + 1)); -> {}'),
        (7, "arguments swapped", "size, kMost -> kMost, size"),
        (7, "statement deleted", "rows.add(size, kMost); -> ;"),
        (9, "constant changed", "2 -> 3"),
        (9, "min and max", "min -> max"),
        (9, "return replaced", "std::min(size, 2) -> {}"),
    }


@pytest.mark.parametrize("mutant", python_mutants("a.py", PYTHON), ids=lambda each: each.change)
def test_mutants_compile_and_differ(mutant):
    assert is_valid(mutant, PYTHON)
    assert mutant.after in mutant.planted_in(PYTHON)


def test_a_fault_is_found_after_names_changed(tmp_path):
    """The line with other names, not the one of the same function that says something else."""
    old = next(
        each for each in python_mutants("a.py", PYTHON) if each.operator == "exception not raised"
    )
    text = dedent("""
        def load(source):
            if source is None:
                raise TypeError("a source is None")

        def load_rows(count=4, *, most=None):
            if count >= 0 and most:
                raise ValueError(f"{count + 1} is too many")
            logger.info("%s rows", count - 1)
    """)
    (tmp_path / "b.py").write_text(text)
    mutants = [each for each in python_mutants("b.py", text) if each.operator == old.operator]

    assert "load_rows" == likest(tmp_path, old, PYTHON, "b.py", mutants)[0].mutant.function
