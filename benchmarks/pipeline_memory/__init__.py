# SPDX-License-Identifier: Apache-2.0
"""What each rank of a pipeline holds, beside what theory says; see README.md."""
