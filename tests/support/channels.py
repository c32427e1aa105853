# SPDX-License-Identifier: Apache-2.0
"""S3 channels in requests."""


def channel(uri, name="a", mode="File", *, distribution="FullyReplicated", **more):
    """Return a member of InputDataConfig."""
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": distribution}
    return {
        "ChannelName": name,
        "InputMode": mode,
        "DataSource": {"S3DataSource": source},
        **more,
    }
