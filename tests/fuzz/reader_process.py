# SPDX-License-Identifier: Apache-2.0
"""Process that runs one fuzz target of a reader in Python under atheris, which uses libFuzzer.

    python reader_process.py TARGET CORPUS [libFuzzer's options]

It prints what libFuzzer prints. Without arguments it prints the names of the targets.
"""

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))


def main() -> None:
    if len(sys.argv) == 1:
        import readers

        readers.load()
        print("\n".join(readers.TARGETS))
        return
    import atheris

    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["sagemaker_dist", "smdist"]):
        import readers

        readers.load(name)
    gc.freeze()  # a collection need not look at what the imports have made
    atheris.Setup(sys.argv, lambda data: readers.run(name, data))
    atheris.Fuzz()  # ends the process


if __name__ == "__main__":
    main()
