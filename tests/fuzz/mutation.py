# SPDX-License-Identifier: Apache-2.0
"""Process that runs one fuzz target in Python on mutated inputs of a corpus, without coverage.

    python mutation.py TARGET FOLDER EXECUTIONS SECONDS SEED PREFIX

Coverage costs a reader in Python 10 to 100 times the time that it takes itself. So libFuzzer finds
the corpus, and most executions are mutations of what it has found. An input that fails, or takes
more than 20 s of the processor, is written to a file whose name begins with PREFIX. The same
arguments and the same folder make the same inputs.
"""

from __future__ import annotations

import gc
import resource
import signal
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from types import FrameType

MOST_BYTES = 1024
MOST_SECONDS = 20  # of the processor
MOST_MEMORY_KIB = 2048 * 1024
_BLOCK = 1000  # executions between two looks at the clock


class Mutations:
    """Endless inputs: each is one of a corpus in which up to four places were changed.

    inputs: the corpus, in an order that must not depend on the machine; at least one input.
    """

    def __init__(self, inputs: Sequence[bytes], seed: int) -> None:
        self._inputs = inputs
        self._random = Random(seed)

    def next(self) -> bytes:
        random = self._random
        data = bytearray(random.choice(self._inputs))
        for _ in range(random.randrange(1, 5)):
            self._change(data)
        return bytes(data[:MOST_BYTES])

    def _change(self, data: bytearray) -> None:
        """Replace one byte or a few, insert, remove or repeat some, or join two inputs."""
        random = self._random
        at = random.randrange(len(data) + 1)
        length = random.randrange(1, 9)
        match random.randrange(6):
            case 0:
                data[at : at + 1] = random.randbytes(1)
            case 1:
                data[at : at + length] = random.randbytes(length)
            case 2:
                data[at:at] = random.randbytes(length)
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + 4 * length]
            case _:
                other = random.choice(self._inputs)
                data[at:] = other[random.randrange(len(other) + 1) :]


class StuckInput(BaseException):
    """An input takes too long."""


def _stop(signum: int, frame: FrameType | None) -> None:
    raise StuckInput(f"an input, or the block before it, took more than {MOST_SECONDS} s")


def execute(name: str, mutations: Mutations, executions: int, seconds: float, prefix: str) -> int:
    """Run the target until one of the limits is reached, and return the number of executions.

    Raises what the target raises, after the input was written.
    """
    import readers

    run = readers.run
    end = time.monotonic() + seconds
    done = 0
    data = b""
    signal.signal(signal.SIGPROF, _stop)
    try:
        while done < executions and time.monotonic() < end:
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
            for _ in range(min(_BLOCK, executions - done)):
                data = mutations.next()
                run(name, data)
                done += 1
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MOST_MEMORY_KIB:
                raise MemoryError(f"the process takes more than {MOST_MEMORY_KIB:,} KiB")
    except KeyboardInterrupt:  # the number of executions counts
        pass
    except BaseException:
        Path(f"{prefix}{sha256(data).hexdigest()[:16]}").write_bytes(data)
        raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(f"stat::number_of_executed_units: {done}", flush=True)
    return done


def main() -> None:
    name, folder, executions, seconds, seed, prefix = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    import readers

    readers.load(name)
    gc.freeze()  # a collection need not look at what the imports have made
    inputs = [each.read_bytes() for each in sorted(Path(folder).iterdir())]
    execute(name, Mutations(inputs, int(seed)), int(executions), float(seconds), prefix)


if __name__ == "__main__":
    main()
