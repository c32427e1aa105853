# SPDX-License-Identifier: Apache-2.0
"""Script that writes the environment of a rank of TensorFlow."""

import json
import os
from pathlib import Path

names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TF_CONFIG")
seen = {name: os.environ.get(name) for name in names}
Path(os.environ["SM_MODEL_DIR"], f"rank{seen['RANK']}.json").write_text(json.dumps(seen))
