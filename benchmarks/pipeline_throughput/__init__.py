# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a GPT as a pipeline on two ranks against torch's own pipelines."""
