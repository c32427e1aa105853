# SPDX-License-Identifier: Apache-2.0
"""Input data of local jobs, as SageMaker provides it: directories, downloads from S3, FIFOs."""
