# SPDX-License-Identifier: Apache-2.0
"""When a line is printed and over what its rates go, by a clock that the test sets."""

from smdist.dataparallel.torch.training_progress import TrainingProgress


class Clock:
    """A clock that the test sets."""

    seconds = 100.0

    def __call__(self):
        return self.seconds


def steps_at(seconds, capsys):
    """Steps of four samples that begin at these times: what is printed meanwhile, and after."""
    clock = Clock()
    progress = TrainingProgress(counts=True, is_timed=False, every_seconds=10, clock=clock)
    for clock.seconds in seconds:
        progress.forward(4, is_step=True)
    before = capsys.readouterr().out
    clock.seconds += 1000  # the end of a training may be long
    progress.flush()
    progress.flush()
    return before.splitlines(), capsys.readouterr().out.splitlines()


def test_lines_are_ten_seconds_apart(capsys):
    """The first step that begins after ten seconds prints; rates are from line to line."""
    meanwhile, after = steps_at([0, 4, 8, 12, 16, 20, 24, 25], capsys)

    assert [
        "smdist: step=3 samples_per_second=1 steps_per_second=0.25",
        "smdist: step=6 samples_per_second=1 steps_per_second=0.25",
    ] == meanwhile
    assert ["smdist: step=8 samples_per_second=4 steps_per_second=1"] == after


def test_short_trainings_print_once(capsys):
    """At the end: all steps, and the rate of all but the last."""
    assert ([], ["smdist: step=3 samples_per_second=2 steps_per_second=0.5"]) == steps_at(
        [0, 2, 4], capsys
    )
    assert ([], ["smdist: step=1"]) == steps_at([0], capsys)


def test_a_reported_value_is_printed_once(capsys):
    """A line has no loss that an earlier one had."""
    clock = Clock()
    progress = TrainingProgress(counts=True, is_timed=False, every_seconds=0, clock=clock)
    for clock.seconds in (0, 1, 2):
        progress.forward(None, is_step=True)
        if clock.seconds == 0:
            progress.report({"loss": 0.5})

    expected = "smdist: step=1 loss=0.5 steps_per_second=1\nsmdist: step=2 steps_per_second=1\n"
    assert expected == capsys.readouterr().out


def test_samples_are_unknown_until_the_next_line_alone(capsys):
    """One pass without a tensor takes the figure from one line only."""
    clock = Clock()
    progress = TrainingProgress(counts=True, is_timed=False, every_seconds=10, clock=clock)
    for clock.seconds, samples in [(0, 4), (5, None), (10, 4), (15, 8), (20, 8)]:
        progress.forward(samples, is_step=True)

    expected = "smdist: step=2 steps_per_second=0.2\n"
    expected += "smdist: step=4 samples_per_second=1.2 steps_per_second=0.2\n"
    assert expected == capsys.readouterr().out


def test_a_script_may_count_anew(capsys):
    """Steps that begin at zero in each epoch: no rate goes across."""
    clock = Clock()
    progress = TrainingProgress(counts=False, is_timed=False, every_seconds=10, clock=clock)
    for clock.seconds, step in [(0, 7), (4, 8), (8, 0), (12, 1), (20, 3)]:
        progress.report({"step": step, "loss": 0.5})

    assert "smdist: step=3 loss=0.5 steps_per_second=0.25\n" == capsys.readouterr().out
