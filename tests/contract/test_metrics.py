# SPDX-License-Identifier: Apache-2.0
"""What the runtime writes is what SageMaker looks for, and takes no other loss for it."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.contract.metrics import (
    FIELDS,
    LOSS,
    LOSS_METRIC,
    check_field,
    metric_definitions,
    render_line,
)
from sagemaker_dist.errors import OptionError

ROOT = Path(__file__).parents[2]
PREFIXES = st.sampled_from(["", "[algo-1 rank 0] ", "[algo-10 rank 127] ", "\t", "INFO: "])
NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(-1, 1),
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,99}", fullmatch=True).filter(
    lambda name: name not in FIELDS
)


def regexes(*more):
    return {each["Name"]: re.compile(each["Regex"]) for each in metric_definitions(*more)}


def metric_of(field):
    return LOSS_METRIC if field == LOSS else f"smdist:{field}"


def read(regex, line):
    found = regex.search(line)
    return found and float(found[1])


def loss_in(line):
    return read(regexes()[LOSS_METRIC], line)


@given(
    values=st.dictionaries(st.sampled_from(FIELDS), NUMBERS),
    more=st.dictionaries(NAMES, NUMBERS, max_size=5),
    prefix=PREFIXES,
)
def test_every_field_is_read_back(values, more, prefix):
    """To six digits, integers to all; what is not on the line is not found."""
    line = prefix + render_line(more | values)
    given = values | more

    for field in (*FIELDS, *more):
        number = read(regexes(*more)[metric_of(field)], line)
        if field not in given:
            assert number is None
        else:
            tolerance = 0 if isinstance(given[field], int) else 1e-5
            assert math.isclose(given[field], number, rel_tol=tolerance)


@given(values=st.dictionaries(st.sampled_from(FIELDS), NUMBERS))
def test_numbers_have_no_exponent(values):
    """Every reader of numbers takes them."""
    assert re.fullmatch(r"smdist:( [a-z_]+=-?[0-9]+(\.[0-9]+)?)*", render_line(values))


def test_the_line_is_as_documented():
    values = {"all_reduce_ms": 12.3, "loss": 0.693147, "step": 200, "accuracy": 1e-5}

    expected = "smdist: step=200 loss=0.693147 all_reduce_ms=12.3 accuracy=0.00001"
    assert expected == render_line(values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", FIELDS)
def test_what_is_no_number_is_shown_and_not_read(field, value):
    """SageMaker takes numbers alone; the fields after it are read nevertheless."""
    line = render_line({field: value, "other": 3})

    assert f" {field}={value} " in line
    assert read(regexes()[metric_of(field)], line) is None
    assert 3 == read(regexes("other")["smdist:other"], line)


@pytest.mark.parametrize("name", ["", "a b", "a=b", "1st", "val/loss", "é", "a" * 101, "a\n"])
def test_names_that_the_line_cannot_have_are_refused(name):
    for call in (check_field, metric_definitions, lambda name: render_line({name: 1})):
        with pytest.raises(OptionError) as caught:
            call(name)

        assert (name,) == caught.value.about


def test_definitions_are_within_sagemakers_limits():
    """At most 40, names of 255 and expressions of 500 characters, one group each."""
    longest = "a" * 100
    definitions = metric_definitions(longest)

    assert 40 - 20 > len(definitions)
    assert len(definitions) == len({each["Name"] for each in definitions})
    for each in definitions:
        assert {"Name", "Regex"} == set(each)
        assert 255 >= len(each["Name"])
        assert 500 >= len(each["Regex"])
        assert 1 == re.compile(each["Regex"]).groups


def test_expressions_use_what_every_engine_reads():
    """No lookaround, no flags, no named or atomic groups, nothing possessive: RE2 has none."""
    for each in metric_definitions():
        assert [] == re.findall(r"\(\?[^:]|[*+?}]\+", each["Regex"])


LOSSES = [
    "loss=0.5",
    "  loss = 0.5",
    "Loss: 0.5",
    "{'loss': 0.5, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}",  # Hugging Face
    '{"epoch": 1, "loss": 0.5}',
    "epoch  1  loss 0.5  test accuracy 0.9",  # notebooks/digits
    "train_loss=0.5",
    "Train loss 0.5",
    "Training loss: 0.5",
    "train/loss: 0.5",
    "train: loss=0.5",
    "loss: 5e-1",
    "Train Epoch: 1 [0/60000 (0%)]\tLoss: 0.500000",  # PyTorch's examples
    "Train Epoch: 1 [0/60000 (0%)]#011Loss: 0.500000",
    "Epoch: [0][ 10/50]\tTime  0.3 ( 0.5)\tLoss 5.0000e-01 (7.0e+00)\tAcc@1 1 ( 2)",
    "Epoch: [0]  [10/50]  eta: 0:05:10  lr: 0.1  img/s: 300  loss: 0.5 (6.9)",  # torchvision
    "Epoch 0: 100%|████| 10/10 [00:00<00:00, 30it/s, v_num=0, train_loss=0.5]",  # Lightning
    "10/10 ━━━━ 3s 2ms/step - accuracy: 0.8 - loss: 0.5 - val_loss: 0.7",  # Keras
    "INFO:root:loss=0.5",
    "2026-01-01 12:00:00,123 - __main__ - INFO - loss: 0.5",
    "temperature=0.7, text event (va) loss: 0.5",
    "loss: 0.5, average loss 0.6",
    "loss=0.5,acc=0.9",
    "loss=0.5,epoch=3",
    "1: loss: 0.5. Saved.",
    "loss is down; loss: 0.5.",
    "loss=0.5; (loss 0.6)",
]
NO_LOSSES = [
    "val_loss=0.5",
    "eval_loss: 0.5",
    "val-loss: 0.5",
    "val/loss: 0.5",
    "Val loss 0.5",
    "2val: loss=0.5",
    "{'eval_loss': 0.5, 'eval_runtime': 1.0, 'epoch': 1.0}",  # Hugging Face, evaluation
    "{'train_runtime': 9.1, 'train_loss': 0.5, 'epoch': 3.0}",  # and its mean over all
    "Test set: Average loss: 0.5, Accuracy: 9/10 (90%)",
    "Test: [ 0/10]\tTime 0.1 ( 0.1)\tLoss 5.0000e-01 (5.0e-01)",
    "Test:  [ 0/10]  eta: 0:00:05  loss: 0.5 (0.5)  acc1: 80",
    "Validation - loss: 0.5",
    "EVALUATION (3) loss: 0.5",
    "eval: {'loss': 0.5}",
    "smdist: step=200 val_loss=0.5",
    "ce_loss=0.5",
    "total_loss: 0.5",
    "Average loss: 0.5",
    "gloss=0.5",
    "losses=0.5",
    "loss1=0.5",
    "loss_scale=65536",
    "module.loss=0.5",
    "loss=nan",
    "loss: inf",
    "'loss': -inf",
    "loss=tensor(0.5)",
    "no loss",
    "loss=1,234.5",  # no number that SageMaker takes
    "loss: 1,234",
    "loss=0,5",
    "loss=1.234.567,8",
    "loss=1e5,3",
    "loss=1.e-05",
    "loss=1e",
    "loss 3/10",
    "Loss: 13/10",
    "loss 0.3/10",
]


@pytest.mark.parametrize("prefix", ["", "[algo-1 rank 3] "])
@pytest.mark.parametrize("line", LOSSES)
def test_the_loss_that_scripts_print_is_read(line, prefix):
    assert 0.5 == loss_in(prefix + line)


@pytest.mark.parametrize("prefix", ["", "[algo-1 rank 3] "])
@pytest.mark.parametrize("line", NO_LOSSES)
def test_another_loss_is_not_the_training_loss(line, prefix):
    assert loss_in(prefix + line) is None


@given(number=st.floats(allow_nan=False, allow_infinity=False))
@pytest.mark.parametrize("style", ["loss={!r}", "loss: {!r}", "{{'loss': {!r}, 'epoch': 1}}"])
def test_numbers_as_python_prints_them_are_read(style, number):
    """1e-3, -0.5, 12.0, all digits."""
    assert number == loss_in(style.format(number))


@given(
    word=st.one_of(
        st.from_regex(r"[A-Za-z]{1,6}", fullmatch=True),
        st.sampled_from(["tes", "tEx", "v", "va", "vA", "e", "ev", "eVa", "evt"]),
        st.sampled_from(["test", "Val", "EVAL", "tesT"]).map(lambda stem: f"{stem}ing"),
    ),
    join=st.sampled_from([" | ", ": ", " 3 ", "_2 ", "=4, "]),
)
def test_a_line_counts_unless_it_speaks_of_another_data_set(word, join):
    """The expression, which cannot look ahead, against what it means."""
    is_other = re.match("test|val|eval", word, re.IGNORECASE) is not None

    assert (None if is_other else 0.5) == loss_in(f"{word}{join}loss=0.5")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("end", ["", ",1", "/"])
@pytest.mark.parametrize("part", ["━", "a ", "t", "1 -", "x=1 ", "loss ", " ", "- ", "smdist: ",
                                  "loss 1,1 ", "loss=1/ ", "loss=1,1", "'loss': 1/"])  # fmt: skip
def test_long_lines_take_no_long_time(part, end):
    """Expressions search every line of a log."""
    found = [regex.search(part * 20_000 + end) for regex in regexes("x").values()]

    assert {None} == set(found)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("end", [",1", "/", "e", ".1.1"])
@pytest.mark.parametrize("digits", ["1", "1.", "1e+"])
def test_long_numbers_take_no_long_time(digits, end):
    assert loss_in(f"loss={digits}{'1' * 100_000}{end}") is None


def test_document_names_every_metric():
    """docs/metrics.md has each definition and each field."""
    text = (ROOT / "docs/metrics.md").read_text()

    assert [] == [each["Name"] for each in metric_definitions() if f"`{each['Name']}`" not in text]
    assert [] == [field for field in FIELDS if f"{field}=" not in text and f"{field}`" not in text]
