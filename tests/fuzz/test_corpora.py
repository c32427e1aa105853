# SPDX-License-Identifier: Apache-2.0
"""Readers in Python take every input of their corpora; `make fuzz` finds further ones."""

import errno
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parent / "native" / "fuzz"
sys.path.insert(0, str(HERE))

import readers  # noqa: E402
from byte_source import ByteSource  # noqa: E402
from hex_corpus import MOST_BYTES, MOST_INPUTS, read_inputs, regressions, write_inputs  # noqa: E402
from reader_list import MEMORY, kept  # noqa: E402

readers.load()
CORPORA = sorted([*(HERE / "corpus").iterdir(), *(NATIVE / "corpus").iterdir()])


def test_every_reader_has_a_corpus():
    assert {f"{name}.hex" for name in readers.TARGETS} == {
        each.name for each in (HERE / "corpus").iterdir()
    }


@pytest.mark.parametrize("name", readers.TARGETS)
def test_a_reader_takes_its_corpus(name):
    for data in read_inputs(HERE / "corpus" / f"{name}.hex"):
        readers.run(name, data)


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda each: each.stem)
def test_corpora_are_small(corpus):
    assert 0 < len(read_inputs(corpus)) <= MOST_INPUTS
    assert corpus.stat().st_size <= MOST_BYTES


def test_a_corpus_keeps_its_regressions(tmp_path):
    """A new corpus has those of the old one, and the shortest inputs first."""
    corpus = tmp_path / "a.hex"
    corpus.write_text("# regression: it was deep\nffff\n00\n")

    assert 3 == write_inputs(corpus, [b"\x01\x02\x03", b"\x01", b"\xff\xff"])
    assert [("# regression: it was deep", b"\xff\xff")] == list(regressions(corpus))
    assert [b"\xff\xff", b"\x01", b"\x01\x02\x03"] == read_inputs(corpus)


@pytest.mark.parametrize(
    "content", [b"", b"a\r\nb\rc\n", "ü\u2028".encode(), b"\xff", b"\xef\xbb\xbf1"]
)
def test_a_file_in_memory_reads_as_one_on_disk(tmp_path, content):
    on_disk = tmp_path / "a"
    on_disk.write_bytes(content)
    in_memory = kept(MEMORY / "a", content)

    assert on_disk.read_bytes() == in_memory.read_bytes()
    assert _outcome(on_disk.read_text) == _outcome(in_memory.read_text)
    assert (True, False) == (in_memory.is_file(), in_memory.is_dir())


def test_no_file_in_memory_is_as_no_file_on_disk(tmp_path):
    for folder in (tmp_path, MEMORY):
        missing = folder / "b"
        assert not missing.is_file()
        with pytest.raises(FileNotFoundError) as caught:
            missing.read_text(encoding="utf-8")
        assert (errno.ENOENT, str(missing)) == (caught.value.errno, str(caught.value.filename))


def _outcome(read):
    try:
        return read(encoding="utf-8")
    except UnicodeDecodeError as error:
        return str(error)


def test_bytes_after_the_end_of_an_input_are_zero():
    source = ByteSource(b"\x05\x03abc")

    assert [5, b"abc", b"", 0, False] == [
        source.byte(),
        source.bytes(source.byte()),
        source.rest(),
        source.below(7),
        source.flag(),
    ]
