# SPDX-License-Identifier: Apache-2.0
"""How fast two ranks train a GPT as a pipeline, beside torch's own pipelines."""
