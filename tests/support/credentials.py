# SPDX-License-Identifier: Apache-2.0
"""Credentials that exist nowhere else, and a search for them in the files that a job writes."""

import gzip
import io
import json
import tarfile
from pathlib import Path

NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
ENVIRONMENT = dict(
    zip(
        NAMES,
        ("ASIAENVIRONMENT5QX7", "Env/secret+Zk81Vwq90aL", "EnvToken//Yt55opMMx3=="),
        strict=True,
    )
)
SESSION = dict(
    zip(
        NAMES,
        ("ASIASESSIONKEY3WV2B", "Ses/secret+Jd22Hrn46cP", "SesToken//Qe19gkUUb8=="),
        strict=True,
    )
)
SECRETS = (*ENVIRONMENT.values(), *SESSION.values())

# A script that searches inside its host while the job runs. It gets the secrets reversed, because
# it must know them, and the search must not find this test's own request.
LOOK = """
import argparse, json, os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--reversed", type=json.loads)
parser.add_argument("--places", type=json.loads)
arguments = parser.parse_args()
secrets = [text[::-1] for text in arguments.reversed]
found = []
for place in arguments.places:
    for path in Path(place).rglob("*"):
        try:
            data = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
        found += [f"{path}: {text}"[::-1] for text in secrets if text.encode() in data]
report = {
    "found": found,
    "environment": [name for name, value in os.environ.items() if value in secrets],
    "data": Path(os.environ["SM_CHANNEL_TRAINING"], "a").read_text(),
}
host = os.environ["SM_CURRENT_HOST"]
Path(os.environ["SM_MODEL_DIR"], f"{host}.json").write_text(json.dumps(report))
"""


def look(places):
    """Return the hyperparameters of LOOK."""
    reversed_secrets = json.dumps([text[::-1] for text in SECRETS])
    return {"reversed": reversed_secrets, "places": json.dumps([str(place) for place in places])}


def hits(*texts):
    """Return the secrets that occur in any of these texts."""
    whole = "\0".join(map(str, texts))
    return [secret for secret in SECRETS if secret in whole]


def hits_below(folder):
    """Return every file below that contains a secret, also inside archives and in names."""
    found = []
    for path in Path(folder).rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        found += [f"{path}: {secret}" for secret in hits(path, *_texts(path.name, data))]
    return found


def _texts(name, data):
    yield data.decode("utf-8", "replace")
    if name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                inner = archive.extractfile(member) if member.isfile() else None
                yield from _texts(member.name, inner.read() if inner else b"")
    elif name.endswith(".gz"):
        yield gzip.decompress(data).decode("utf-8", "replace")
