# SPDX-License-Identifier: Apache-2.0
"""Interface of the connected ranks of one framework, which `run` takes down and sets up again."""

from __future__ import annotations

from typing import Protocol

from smdist.elastic.agent_client import ElasticStore, Generation


class FrameworkWorld(Protocol):
    """The ranks of one framework that are connected with each other."""

    def size(self) -> int:
        """Return the number of ranks.

        Raises:
            OptionError: The ranks are not connected.
        """

    def rank(self) -> int:
        """Return this rank's number."""

    def leave(self) -> None:
        """Disconnect this rank from the others; do nothing if it is not connected."""

    def enter(self, generation: Generation, store: ElasticStore) -> None:
        """Connect this rank with the others of a generation, through `store`."""
