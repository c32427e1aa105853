# SPDX-License-Identifier: Apache-2.0
"""Names of modules in a model, such as "blocks.0.wide", and in a block of it."""

from __future__ import annotations


def are_siblings(names: tuple[str, ...]) -> bool:
    """Return True if modules are directly in the same module, which is not the model."""
    around = {name.rpartition(".")[0] for name in names}
    return len(around) == 1 and "" not in around


def around(names: tuple[str, ...]) -> str:
    """Return the name of the smallest module that contains all of these modules."""
    paths = [name.split(".")[:-1] for name in names]
    shared: list[str] = []
    for keys in zip(*paths, strict=False):
        if len(set(keys)) > 1:
            break
        shared.append(keys[0])
    return ".".join(shared)


def within(name: str, block: str) -> str:
    """Return the name that a module of a block has in the block; "" as block is the whole model."""
    return name.removeprefix(f"{block}.") if block else name


def joined(block: str, name: str) -> str:
    """Return the name in the model of a module with this name in a block."""
    return f"{block}.{name}" if block and name else block or name
