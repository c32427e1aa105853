# SPDX-License-Identifier: Apache-2.0
"""How long the ranks of a pipeline wait, beside what theory says; see README.md."""
