# SPDX-License-Identifier: Apache-2.0
"""Line numbers of the keys of TOML texts, against random texts with known lines."""

import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagemaker_dist.jobs.job_file.toml_lines import key_lines, key_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXTS = st.text(alphabet="ab\"'#[]{}=, .\\\n", max_size=12)
KEYS = st.one_of(st.sampled_from(["a", "b-1", "c_d", "9"]), st.text("a.\"'=# ]", min_size=1))
GAPS = st.sampled_from(["", " ", "\n", '  # ] } = "\n'])


@dataclass
class Writer:
    """Writer of TOML that records the line of every key."""

    draw: object
    text: str = ""
    lines: dict = field(default_factory=dict)

    def document(self):
        self.pairs((), self.draw(st.integers(0, 3)))
        for name in self.draw(st.lists(KEYS, max_size=3, unique=True)):
            if (name,) in self.lines:
                continue
            self.table((name,))
        return self

    def table(self, path):
        if self.draw(st.booleans()):
            self.header(path, "[", "]")
            self.pairs(path, 3)
            return
        for number in range(self.draw(st.integers(1, 3))):
            self.text += self.draw(st.sampled_from(["", "\n", "# [x]\n"]))
            self.mark((*path, number))
            self.header(path, "[[", "]]")
            self.pairs((*path, number), 2)

    def header(self, path, begin, end):
        self.mark(path)
        self.text += f"{begin} {'.'.join(map(self.key, path))} {end} # comment\n"

    def pairs(self, path, most):
        for name in self.draw(st.lists(KEYS, max_size=most, unique=True)):
            self.text += self.draw(st.sampled_from(["", "\n", "  ", "# a = 1\n"]))
            self.pair((*path, name))
            self.text += "\n"

    def pair(self, path):
        self.mark(path)
        self.text += self.key(path[-1])
        if self.draw(st.booleans()):  # dotted
            path = (*path, self.draw(KEYS))
            self.mark(path)
            self.text += f" . {self.key(path[-1])}"
        self.text += " = "
        self.value(path, 2)

    def value(self, path, depth):
        kinds = ["text", "scalar"] + (["array", "inline"] if depth else [])
        kind = self.draw(st.sampled_from(kinds))
        if kind == "text":
            self.text += self.string(self.draw(TEXTS))
        elif kind == "scalar":
            self.text += self.draw(st.sampled_from(["1", "true", "1979-05-27 07:32:00", "1e3"]))
        elif kind == "array":
            self.array(path, depth)
        else:
            self.inline(path, depth)

    def array(self, path, depth):
        self.text += "["
        for number in range(self.draw(st.integers(0, 3))):
            self.text += self.draw(GAPS)
            self.mark((*path, number))
            self.value((*path, number), depth - 1)
            self.text += self.draw(GAPS) + ","
        self.text += self.draw(GAPS) + "]"

    def inline(self, path, depth):
        self.text += "{"
        for number, name in enumerate(self.draw(st.lists(KEYS, max_size=2, unique=True))):
            self.text += ", " if number else " "
            self.mark((*path, name))
            self.text += f"{self.key(name)} = "
            self.value((*path, name), depth - 1)
        self.text += " }"

    def key(self, name):
        if name.replace("-", "").replace("_", "").isalnum() and self.draw(st.booleans()):
            return name
        if "'" not in name and self.draw(st.booleans()):
            return f"'{name}'"
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def string(self, text):
        kind = self.draw(st.sampled_from(["basic", "literal", "long basic", "long literal"]))
        if kind == "literal" and not {"'", "\n"} & set(text):
            return f"'{text}'"
        escaped = text.replace("\\", "\\\\")
        if kind == "long basic":
            return '"""' + escaped.replace('"""', '""\\"') + '"""'
        if kind == "long literal" and "'''" not in text:
            return f"'''{text}'''"
        return '"' + escaped.replace('"', '\\"').replace("\n", "\\n") + '"'

    def mark(self, path):
        self.lines.setdefault(path, self.text.count("\n") + 1)


def paths_of(value, path=()):
    inner = value.items() if isinstance(value, dict) else []
    inner = enumerate(value) if isinstance(value, list) else inner
    for name, each in inner:
        yield (*path, name)
        yield from paths_of(each, (*path, name))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_every_key_of_any_text(data):
    """Each key that the parser finds has the line on which it was written."""
    writer = Writer(data.draw).document()
    found = key_lines(writer.text)

    assert set(paths_of(tomllib.loads(writer.text))) == set(found)
    assert writer.lines == found


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tables_that_come_back(end):
    """Tables may be in any order, also below arrays of tables; CRLF counts as one line end."""
    text = end.join(["[a.b]", "x = 1", "[[c]]", "[c.d]", "y = 2", "[[c]]", "[c.d]", "z = 3", "[a]"])
    found = key_lines(text)

    assert (1, 1, 2) == (found["a",], found["a", "b"], found["a", "b", "x"])
    assert (3, 4, 5) == (found["c", 0], found["c", 0, "d"], found["c", 0, "d", "y"])
    assert (6, 7, 8) == (found["c", 1], found["c", 1, "d"], found["c", 1, "d", "z"])


@pytest.mark.parametrize(
    ("dotted", "parts"),
    [("a", ("a",)), ("a.b-c", ("a", "b-c")), ("a.'b.c'", ("a", "b.c")), ('"x y"', ("x y",))],
)
def test_key_path(dotted, parts):
    """A key on the command line is read as a TOML key."""
    assert parts == key_path(dotted)


@pytest.mark.parametrize("dotted", ["", "a b", "a.", "a=1", "a\nb", "a;", "#", "[x]#", "a#"])
def test_no_key(dotted):
    """A text that TOML does not accept as a key is refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - a parser of the standard library words it
        key_path(dotted)
