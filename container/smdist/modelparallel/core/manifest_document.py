# SPDX-License-Identifier: Apache-2.0
"""Reader of a manifest from a checkpoint, whose contents may be anything.

Each field is checked before it is used: a name that is no text might take years to hash, and
control characters in one might change a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from smdist.modelparallel.core.manifest import Group, Manifest, ManifestEntry, OptimizerState


def manifest_of(document: object) -> Manifest:
    """Return the manifest from a dict that `Manifest.document` returned.

    Raises:
        ValueError: The object is no such dict. The error says what is wrong.
    """
    found = _fields(Manifest, document, "manifest")
    entries = tuple(_entry(each) for each in _items(found["entries"], "entries"))
    state = found.get("state")
    return Manifest(
        model=_word(found["model"], "model"),
        entries=entries,
        state=None if state is None else _state(state),
        layout=_options(found.get("layout", {}), "layout"),
        run=_options(found.get("run", {}), "run"),
    )


def _fields(kind: type[Any], document: object, name: str) -> Mapping[str, Any]:
    """Return a dict whose keys are the fields of a class; fields with a default may be missing."""
    known = {each.name: each for each in fields(kind)}
    if not isinstance(document, Mapping) or not all(type(key) is str for key in document):
        raise ValueError(f"{name}: no dict with names as keys")
    needed = {
        key
        for key, each in known.items()
        if each.default is MISSING and each.default_factory is MISSING
    }
    if document.keys() - known.keys() or needed - document.keys():
        raise ValueError(f"{name}: its fields are not {', '.join(known)}")
    return document


def _entry(document: object) -> ManifestEntry:
    found = _fields(ManifestEntry, document, "entries")
    shape = found.get("shape")
    if shape is not None:
        shape = tuple(_items(shape, "shape"))
        if not all(type(each) is int and each >= 0 for each in shape):
            raise ValueError("shape: an item is no length")
    return ManifestEntry(
        name=_word(found["name"], "name"),
        aliases=_words(found.get("aliases", ()), "aliases"),
        shape=shape,
        dtype=_word(found.get("dtype", ""), "dtype"),
    )


def _state(document: object) -> OptimizerState:
    found = _fields(OptimizerState, document, "state")
    groups = [_fields(Group, each, "groups") for each in _items(found["groups"], "groups")]
    keys = _options(found["keys"], "keys")
    return OptimizerState(
        kind=_word(found["kind"], "kind"),
        options=_words(found["options"], "options"),
        groups=tuple(
            Group(
                names=_words(each["names"], "names"),
                options=_options(each["options"], "options"),
            )
            for each in groups
        ),
        keys={_word(name, "keys"): _words(of, "keys") for name, of in keys.items()},
    )


def _items(value: object, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name}: no sequence")
    return value


def _words(value: object, name: str) -> tuple[str, ...]:
    return tuple(_word(each, name) for each in _items(value, name))


def _word(value: object, name: str) -> str:
    """Return a text that can be printed: a control character could change a terminal."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name}: no printable text")
    return value


def _options(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(type(key) is str for key in value):
        raise ValueError(f"{name}: no dict with names as keys")
    return value
