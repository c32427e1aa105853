# SPDX-License-Identifier: Apache-2.0
"""Comparison of instance types and counts for one training, by time and price.

candidates.py      clusters that are compared
calibrated_type.py instance type whose speeds were measured
forecast.py        best layout on each cluster, from the runtime in a process of its own
offers.py          hours and dollars of each cluster, and the Pareto front; arithmetic only
verdicts.py        why an offer is chosen or not
front_picture.py   picture of hours and dollars
"""

from sagemaker_dist.cli.advice.candidates import Candidate, candidates_of
from sagemaker_dist.cli.advice.forecast import forecasts_of
from sagemaker_dist.cli.advice.front_picture import draw_front
from sagemaker_dist.cli.advice.offers import Offer, TrainingWork, offers_of, pareto_front
from sagemaker_dist.cli.advice.verdicts import Advice, advice_of

__all__ = [
    "Advice",
    "Candidate",
    "Offer",
    "TrainingWork",
    "advice_of",
    "candidates_of",
    "draw_front",
    "forecasts_of",
    "offers_of",
    "pareto_front",
]
