# SPDX-License-Identifier: Apache-2.0
"""Scheduler of pytest-xdist that shares out tests by file, and survives a process that ends.

xdist's own LoadScopeScheduling (3.8) hangs after that: it gives the files that the ended process
had finished to another one, which then waits for ever, since nothing in them is left to run.
"""

from xdist.scheduler import LoadScopeScheduling


class FileScheduler(LoadScopeScheduling):
    """Give each process one file after the other.

    Each tuple of folders and files in `together` counts as one file, and so does each test in the
    files `apart`.
    """

    def __init__(self, config, log, together=(), apart=()):
        super().__init__(config, log)
        self._together = together
        self._apart = apart

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        if file in self._apart:
            return nodeid
        return next((each[0] for each in self._together if file.startswith(each)), file)

    def remove_node(self, node):
        """Return the test that ended its process, and let the other processes run the rest.

        That test is not run again: it would end the next process, too.
        """
        units = self.assigned_work.pop(node)
        left = [(unit, test) for unit in units.values() for test, done in unit.items() if not done]
        if not left:
            return None
        unit, crashed = left[0]
        unit[crashed] = True
        self.workqueue.update(
            {scope: unit for scope, unit in units.items() if not all(unit.values())}
        )
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node):
        """Give a process files until it has two tests; the last one ends it.

        A process runs a test only when it knows the next one, or that there is none. A third would
        wait behind both, though they may take minutes and another process may be free sooner.
        """
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()
