# SPDX-License-Identifier: Apache-2.0
"""Picture of offers: hours against dollars, both logarithmic, with ranges and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import Final

from sagemaker_dist.cli.advice.offers import Offer
from sagemaker_dist.cli.advice.verdicts import Advice

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 50, 55
_INK, _FAINT, _FRONT, _CHOICE = "#333333", "#9aa5b1", "#1f6fb4", "#c2410c"
_STEPS: Final = (1, 2, 5)  # labels of a logarithmic axis in each decade
_CHARACTER, _LINE = 6.2, 13.0  # largest width of a character of a label, and height of a line


@dataclass(frozen=True, slots=True)
class _Axis:
    """Logarithmic axis.

    Attributes:
        low: Value at the pixel `start`.
        high: Value at the pixel `end`.
        start: First pixel.
        end: Last pixel.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """Yield the values that get a label: 1, 2 and 5 times powers of ten."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for power, step in product(range(first, last + 1), _STEPS):
            if self.low <= step * 10.0**power <= self.high:
                yield step * 10.0**power


def draw_front(advice: Advice, title: str) -> str:
    """Return an SVG picture of all offers with a layout; bars are ranges, a line is the front."""
    shown = [each for each in advice.offers if each.layout is not None]
    across = _axis([each.hours for each in shown], _LEFT, _WIDTH - _RIGHT)
    up = _axis([each.dollars for each in shown], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' font-family="sans-serif" font-size="11" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, size=15),
        *_grid(across, up),
        *_front_line(advice.front, across, up),
        *(part for each in shown for part in _point(each, advice, across, up)),
        *_labels(advice, across, up),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axis(figures: Sequence[object], start: float, end: float) -> _Axis:
    low = min(each.low for each in figures)  # type: ignore[attr-defined]
    high = max(each.high for each in figures)  # type: ignore[attr-defined]
    return _Axis(low / 1.15, high * 1.15, start, end)


def _grid(across: _Axis, up: _Axis) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in across.ticks():
        x = across.at(value)
        yield _line(x, _TOP, x, bottom, "#e5e7eb")
        yield _text(x, bottom + 16, f"{value:g}", anchor="middle")
    for value in up.ticks():
        y = up.at(value)
        yield _line(_LEFT, y, right, y, "#e5e7eb")
        yield _text(_LEFT - 6, y + 4, f"{value:,g}", anchor="end")
    yield _text((_LEFT + right) / 2, _HEIGHT - 14, "hours of training", anchor="middle", size=12)
    yield _text(_LEFT, _TOP - 8, "US dollars on demand", size=12)


def _front_line(front: Sequence[Offer], across: _Axis, up: _Axis) -> Iterator[str]:
    points = " ".join("{:.1f},{:.1f}".format(*_place(each, across, up)) for each in front)
    yield f'<polyline points="{points}" fill="none" stroke="{_FRONT}" stroke-width="1.5"/>'


def _point(offer: Offer, advice: Advice, across: _Axis, up: _Axis) -> Iterator[str]:
    is_on_front, is_choice = offer in advice.front, offer is advice.choice
    colour = _CHOICE if is_choice else _FRONT if is_on_front else _FAINT
    x, y = _place(offer, across, up)
    assert offer.hours is not None
    assert offer.dollars is not None
    # Hours and dollars are proportional: one line shows the range of both.
    low = across.at(offer.hours.low), up.at(offer.dollars.low)
    high = across.at(offer.hours.high), up.at(offer.dollars.high)
    yield _line(*low, *high, colour)
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if is_choice else 4}" fill="{colour}"/>'


def _labels(advice: Advice, across: _Axis, up: _Axis) -> Iterator[str]:
    """Yield the names of the choice and of the front, each on a line that no other one covers."""
    named = [*advice.front]
    if advice.choice is not None and advice.choice not in named:
        named.append(advice.choice)
    taken: list[tuple[float, float, float]] = []
    for each in named:
        x, y = _place(each, across, up)
        width = _CHARACTER * len(each.name)
        left = x - 8 - width if x > _WIDTH - 200 else x + 6
        lines = (y + 14 + sign * _LINE * step for step in range(len(named) + 1) for sign in (1, -1))
        free = next(
            line for line in lines if not any(
                left < right and start < left + width and abs(line - at) < _LINE
                for start, right, at in taken
            )
        )  # fmt: skip
        taken.append((left, left + width, free))
        colour = _CHOICE if each is advice.choice else _FRONT
        if left < x:
            yield _text(left + width, free, each.name, anchor="end", colour=colour)
        else:
            yield _text(left, free, each.name, colour=colour)


def _place(offer: Offer, across: _Axis, up: _Axis) -> tuple[float, float]:
    assert offer.hours is not None
    assert offer.dollars is not None
    return across.at(offer.hours.expected), up.at(offer.dollars.expected)


def _line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, colour: str = _INK
) -> str:
    look = f'text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'
