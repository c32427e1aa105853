# SPDX-License-Identifier: Apache-2.0
"""`make gpu`: runs all that needs a GPU, in parts, and writes a report.

    machine      whether there is a GPU; the machine's facts
    interpreter  a Python with the torch of this machine, and the runtime built against it
    parts        what each part runs: commands and their deadlines
    running      runs one command; what it leaves behind is ended
    results      results of commands, read from what they wrote
    report       build/gpu/report.md and report.json

Nothing is downloaded, and nothing but build/gpu is written. Only the standard library is imported,
since torch may be missing.
"""
