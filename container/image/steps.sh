#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The steps of ../Dockerfile, by name. A fault is one line that begins with "sagemaker-dist:".
set -eu
umask 022

fail() {
  echo "sagemaker-dist: $1: $2. $3." >&2
  exit 1
}

check() {
  case $FRAMEWORK in torch | tensorflow) ;; *)
    fail "FRAMEWORK is '$FRAMEWORK'" "there are images for two frameworks" \
      "Choose torch or tensorflow"
  esac
  for tool in bash python3 pip3; do
    command -v $tool >/dev/null || fail "the base image has no $tool" \
      "the training image is made of it" "Choose one that has bash, python3 and pip3"
  done
}

# What is downloaded in this step is checked against these certificates, too; they go with it.
trust() {
  [ -s /run/secrets/ca ] || return 0
  PIP_CERT=$(mktemp)
  export PIP_CERT
  trap 'rm -f "$PIP_CERT"' EXIT
  cat "$(python3 -c 'from pip._vendor import certifi; print(certifi.where())')" /run/secrets/ca \
    >"$PIP_CERT"
  chmod 644 "$PIP_CERT" # apt downloads as a user of its own
  echo "pip and apt trust the certificates of the secret 'ca'"
}

install() {
  trust
  export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
  if [ -s /run/secrets/pip ]; then export PIP_CONFIG_FILE=/run/secrets/pip; fi
  if [ -n "$OFFLINE" ]; then export PIP_NO_INDEX=1; fi
  pip3 install --quiet --no-cache-dir --find-links /mnt/wheelhouse "$@"
}

# The version of the framework that is installed, or nothing.
found() {
  python3 - "$FRAMEWORK" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version

for name in (sys.argv[1], sys.argv[1] + "-cpu"):
    try:
        print(version(name).partition("+")[0])
        break
    except PackageNotFoundError:
        pass
PYTHON
}

install_framework() {
  check
  install_framework
  install numpy tqdm
}

packages() {
  install /mnt/wheels/*.whl
  for tool in train smdist-init; do
    command -v $tool >/dev/null || fail "$tool is not on the PATH" \
      "pip puts programs elsewhere in this base image" "Choose another base image"
  done
  if [ "$FRAMEWORK" = torch ]; then python3 -B -c 'import smdist.dataparallel.torch'; fi
}

"$@"
