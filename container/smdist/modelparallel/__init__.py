# SPDX-License-Identifier: Apache-2.0
"""Model parallelism: a model is split into stages of similar cost, which run as a pipeline."""
