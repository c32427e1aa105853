# SPDX-License-Identifier: Apache-2.0
"""Modules and classes have names of their own, and imports have no circle.

shared_names.toml lists the names that are shared on purpose, with reasons. ratchet.toml has how
many offenders are left; they may only shrink.
"""

from ratchet import SHARED, at_most
from sources import circles, imports, shared_class_names, shared_module_names

MOST_SHARED_MODULES = 20


def listed(found: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {place}" for name, places in found.items() for place in places]


def test_modules_have_names_of_their_own():
    """A name that two modules of a distribution share has a reason."""
    shared = shared_module_names()
    unexplained = {name: paths for name, paths in shared.items() if name not in SHARED["modules"]}

    at_most("names", "modules", listed(unexplained))


def test_few_modules_share_a_name_on_purpose():
    """Reasons are for 20 modules at most."""
    shared = shared_module_names()
    explained = {name: paths for name, paths in shared.items() if name in SHARED["modules"]}

    assert MOST_SHARED_MODULES >= len(listed(explained))


def test_classes_have_names_of_their_own():
    shared = shared_class_names()
    unexplained = {name: paths for name, paths in shared.items() if name not in SHARED["classes"]}

    at_most("names", "classes", listed(unexplained))


def test_reasons_are_for_names_that_are_shared():
    """A reason that is no longer needed goes, and none is empty."""
    assert set() == set(SHARED["modules"]) - set(shared_module_names())
    assert set() == set(SHARED["classes"]) - set(shared_class_names())
    assert all(len(reason) > 10 for part in SHARED.values() for reason in part.values())


def test_imports_have_no_circle():
    """Those for type checkers and in functions count, too."""
    groups = circles(imports())
    found = [f"{group[0]} and {len(group) - 1} more: {name}" for group in groups for name in group]

    at_most("imports", "modules_in_circles", found)


def test_circles_are_found():
    """Two circles that touch are one; a module that a circle imports is in none."""
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}

    assert [["a", "b", "c"], ["e", "f"]] == circles(graph)
