# SPDX-License-Identifier: Apache-2.0
"""Command `sagemaker-dist schema`, which prints the JSON Schema of job files."""

from __future__ import annotations

import click

from sagemaker_dist.cli import screen


@click.command()
def schema() -> None:
    """Print the JSON Schema of job files, with which editors complete and check job files."""
    from sagemaker_dist.jobs.job_file import job_schema

    screen.print_json(job_schema())
