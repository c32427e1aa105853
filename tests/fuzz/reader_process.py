# SPDX-License-Identifier: Apache-2.0
"""Process that runs one fuzz target of a reader in Python under atheris, which uses libFuzzer.

    python reader_process.py TARGET CORPUS [libFuzzer's options]

It prints what libFuzzer prints. Without arguments it prints the names of the targets.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["sagemaker_dist", "smdist"]):
        import readers
    if len(sys.argv) == 1:
        print("\n".join(readers.TARGETS))
        return
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: readers.run(name, data))
    atheris.Fuzz()  # ends the process


if __name__ == "__main__":
    main()
