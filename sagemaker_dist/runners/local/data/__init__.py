# SPDX-License-Identifier: Apache-2.0
"""Input data of local jobs in SageMaker's forms: directories, downloads from S3, FIFOs."""
