# SPDX-License-Identifier: Apache-2.0
"""Data as SageMaker gives it: directories, downloads from S3, fifos."""
