# SPDX-License-Identifier: Apache-2.0
"""Writes what the commands of docs/planner.md print, and its picture: `python docs/planner.py`."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PAGE = Path(__file__).with_suffix(".md")
PICTURE = PAGE.with_suffix(".png")
BEGIN, END = "<!-- begin: written by planner.py -->\n", "<!-- end -->\n"


def blocks(page: str, language: str) -> list[str]:
    """The code of a page, block by block."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def written(page: str, folder: Path) -> str:
    """The page with the output of its first command made anew; files are made in the folder."""
    (folder / "model.py").write_text(blocks(page, "python")[0])
    command = blocks(page, "sh")[0].replace("\\\n", " ").split()
    assert command.pop(0) == "sagemaker-dist"
    program = [sys.executable, "-m", "sagemaker_dist.cli", *command]
    done = subprocess.run(program, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```text\n{done.stdout}```\n\n{END}{after}"


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        PAGE.write_text(written(PAGE.read_text(), Path(made)))
        shutil.copyfile(Path(made) / "plan.png", PICTURE)
