#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The steps of ../Dockerfile, by name. A fault is a line that begins with "sagemaker-dist:", after a
# line "sagemaker-dist kind: KIND" for programs.
set -eu
umask 022

fail() {
  echo "sagemaker-dist kind: $4" >&2
  echo "sagemaker-dist: $1: $2. $3." >&2
  exit 1
}

check() {
  case $FRAMEWORK in torch | tensorflow) ;; *)
    fail "FRAMEWORK is '$FRAMEWORK'" "there are images for two frameworks" \
      "Choose torch or tensorflow" unknown
  esac
  for tool in bash python3 pip3; do
    command -v $tool >/dev/null || fail "the base image has no $tool" \
      "the training image is made of it" "Choose one that has bash, python3 and pip3" \
      missing_program
  done
}

# What is downloaded in this step is checked against these certificates, too; they go with it.
trust() {
  [ -z "${PIP_CERT:-}" ] || return 0 # it does already
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
  export PIP_RETRIES=2
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

# What pip calls the framework here: of TensorFlow the half without CUDA, where there is none or
# none is wanted.
# Offline, a wheelhouse that holds the whole alone is taken at its word.
package() {
  house=${1:-/mnt/wheelhouse}
  if [ "$FRAMEWORK" != tensorflow ] || [ "$(uname -m)" != x86_64 ]; then
    echo "$FRAMEWORK"
  elif [ -e /usr/local/cuda ] && [ "${ACCELERATOR:-}" != cpu ]; then
    echo "$FRAMEWORK"
  elif [ -n "$OFFLINE" ] && [ -z "$(find "$house" -name 'tensorflow_cpu-*')" ] &&
    [ -n "$(find "$house" -name 'tensorflow-*')" ]; then
    echo tensorflow
  else
    echo tensorflow-cpu
  fi
}

# A CPU build of torch is a version of its own, such as 2.13.0+cpu. A CUDA build is 2.13.0 or
# 2.13.0+cu130.
install_build() {
  exact="$(package)==$FRAMEWORK_VERSION"
  case $FRAMEWORK:${ACCELERATOR:-} in
    torch:cpu) install "$@" "$exact+cpu" ;;
    torch:cuda) install "$@" "$exact,!=$FRAMEWORK_VERSION+cpu" ;;
    torch:) install "$@" "$exact+cpu" 2>/dev/null || install "$@" "$exact" ;;
    *) install "$@" "$exact" ;;
  esac
}

install_framework() {
  version=$(found)
  if [ -z "$version" ]; then
    install_build "$@"
    site=$(python3 -c 'import site; print(site.getsitepackages()[0])')
    rm -rf "$site/torch/test" # torch's own, and nobody imports it
  elif [ "$version" != "$FRAMEWORK_VERSION" ]; then
    fail "the image to build on holds $FRAMEWORK $version" \
      "$FRAMEWORK $FRAMEWORK_VERSION was asked for" \
      "Ask for $version, or build on an image without $FRAMEWORK" conflict
  fi
}

compiler() {
  check
  header=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
  if command -v c++ >/dev/null && [ -e "$header" ]; then
    openssl_headers
    return
  fi
  [ -z "$OFFLINE" ] || fail "BUILD_IMAGE has no C++ compiler, or no headers of its Python" \
    "nothing is downloaded in an offline build" "Choose an image with g++ and these headers" \
    no_compiler
  command -v apt-get >/dev/null || fail "BUILD_IMAGE has no C++ compiler, or no headers" \
    "it has no apt-get to install them" "Choose an image with g++ and the headers of its Python" \
    no_compiler
  trust
  packages="g++ libssl-dev"
  [ -e "$header" ] || packages="$packages python3-dev"
  apt-get update -qq ${PIP_CERT:+-o Acquire::https::CAInfo="$PIP_CERT"}
  # shellcheck disable=SC2086  several packages
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    ${PIP_CERT:+-o Acquire::https::CAInfo="$PIP_CERT"} $packages >/dev/null
}

# integrity="mac" and encrypt=True need OpenSSL's static libraries. A build without them goes on, and
# the runtime refuses both options.
openssl_headers() {
  [ ! -e /usr/include/openssl/ssl.h ] || return 0
  if [ -z "$OFFLINE" ] && command -v apt-get >/dev/null; then
    trust
    cas=${PIP_CERT:+-o Acquire::https::CAInfo="$PIP_CERT"}
    # shellcheck disable=SC2086  empty, or two words
    if apt-get update -qq $cas && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
      --no-install-recommends $cas libssl-dev >/dev/null; then return; fi
  fi
  echo "BUILD_IMAGE has no libssl-dev: the runtime will refuse integrity='mac' and encrypt=True"
}

tools() {
  install_framework --no-deps
  install 'hatchling>=1.27' 'scikit-build-core>=0.11' cmake ninja
  if [ "$FRAMEWORK" = tensorflow ]; then install pybind11; fi # torch brings its own
}

wheel() {
  pip3 wheel --quiet --no-build-isolation --no-deps --no-cache-dir --wheel-dir /wheels "$@"
}

runtime() {
  wheel --config-settings=build-dir=/native /mnt/runtime
}

sdk() {
  wheel /mnt/context
  wire=$(cd /mnt/context && python3 -B -c '
from sagemaker_dist.contract import hyperparameter_format as wire
print(wire.VERSION)')
  if [ "$wire" != "$WIRE" ]; then
    fail "WIRE is '$WIRE'" "this sagemaker_dist speaks version $wire" "Give WIRE=$wire" \
      conflict
  fi
  for name in sagemaker_dist sagemaker_dist_runtime; do
    [ -n "$(find /wheels -name "$name-$VERSION-*.whl")" ] || fail "VERSION is '$VERSION'" \
      "the wheels are $(ls /wheels)" "Give the version of these" conflict
  done
  case $COMPAT in
    "") ;;
    horovod) wheel /mnt/context/container/compat/horovod ;;
    *) fail "COMPAT is '$COMPAT'" "there is one package of this kind" "Choose horovod" unknown ;;
  esac
}

framework() {
  check
  install_framework
  install numpy tqdm
}

packages() {
  mkdir -p /opt/sagemaker_dist
  cp /mnt/bash_env.sh /opt/sagemaker_dist/bash_env.sh
  chmod 644 /opt/sagemaker_dist/bash_env.sh # any user's bash reads it
  if [ -n "$COMPAT" ] && pip3 show --quiet "$COMPAT" 2>/dev/null; then
    fail "the base image has $COMPAT itself" "COMPAT installs another package of this name" \
      "Choose another base image, or leave --compat out" conflict
  fi
  install /mnt/wheels/*.whl
  for tool in train smdist-init; do
    command -v $tool >/dev/null || fail "$tool is not on the PATH" \
      "pip puts programs elsewhere in this base image" "Choose another base image" \
      missing_program
  done
  command -v horovodrun >/dev/null ||
    ln -s smdist-horovodrun "$(dirname "$(command -v smdist-horovodrun)")/horovodrun"
  if [ -n "$COMPAT" ]; then python3 -B -c 'import horovod, sagemaker_dist_horovod'; fi
  case $FRAMEWORK in
    torch) python3 -B -c 'import smdist.dataparallel.torch' ;;
    tensorflow)
      python3 -B -c 'from smdist.dataparallel.tensorflow.op_library import operations; operations()'
      ;;
  esac
}

# NCCL's network plugin, and what the framework turned out to be.
facts() {
  if [ -n "$(find /mnt/plugin -type f -not -name LICENSE)" ]; then plugin; fi
  python3 -B /mnt/image/framework_facts.py "$FRAMEWORK" /opt/sagemaker_dist/image.json
  built=$(python3 -c 'import json
print(json.load(open("/opt/sagemaker_dist/image.json"))["accelerator"])')
  if [ -n "$ACCELERATOR" ] && [ "$built" != "$ACCELERATOR" ]; then
    fail "the image has a build of $FRAMEWORK for $built" "a build for $ACCELERATOR was requested" \
      "Pass --accelerator $built, or another base image or package index" conflict
  fi
}

plugin() {
  home=/opt/sagemaker_dist/nccl
  mkdir -p $home
  for file in /mnt/plugin/*.tar /mnt/plugin/*.tar.* /mnt/plugin/*.tgz; do
    if [ -e "$file" ]; then tar -xf "$file" -C $home --no-same-owner; fi
  done
  for file in /mnt/plugin/*.so /mnt/plugin/*.so.*; do
    if [ -e "$file" ]; then cp "$file" $home/ && chmod 755 "$home/${file##*/}"; fi
  done
  library=$(find $home -name 'libnccl-net*.so*' | sort | head -n 1)
  if [ -n "$(find /mnt/plugin -name '*.deb')" ]; then debian_packages; fi
  [ -n "$library" ] || fail "the files of NCCL's plugin have no library libnccl-net*.so" \
    "NCCL loads its plugin from such a file" "Pass the package of aws-ofi-nccl, too" bad_plugin
  find $home -name '*.so*' -exec dirname {} + | sort -u >/etc/ld.so.conf.d/sagemaker-dist-nccl.conf
  ldconfig
  loads "$library"
  [ "$library" = $home/libnccl-net.so ] || ln -sf "$library" $home/libnccl-net.so
}

# Sets `library` to the plugin of the packages, unless there is one already.
debian_packages() {
  command -v dpkg >/dev/null || fail "the base image has no dpkg" \
    "NCCL's plugin is given as a package of Debian" "Pass a tarball or the library" missing_program
  said=$(dpkg --install /mnt/plugin/*.deb 2>&1) || fail "dpkg cannot install NCCL's plugin" \
    "$(echo "$said" | tr '\n' ' ')" "Pass the packages that it depends on, too" bad_plugin
  for file in /mnt/plugin/*.deb; do
    inside=$(dpkg-deb --fsys-tarfile "$file" | tar -t | grep '/libnccl-net.*\.so' | sort | head -n 1)
    if [ -z "$library" ] && [ -n "$inside" ]; then library=${inside#.}; fi
  done
}

# Every library that the plugin names is in the image; the driver's come with the GPU, and CUDA's
# wheels are loaded by torch.
loads() {
  wheels=$(python3 -c 'import glob, site
print(":".join(glob.glob(site.getsitepackages()[0] + "/nvidia/*/lib")))')
  names=$(LD_LIBRARY_PATH=$wheels ldd "$1" 2>&1) || fail "NCCL's plugin $1 is not a library" \
    "$(echo "$names" | tr '\n' ' ')" "Pass the file for this platform" bad_plugin
  absent=$(echo "$names" | awk '/not found/ && $1 !~ /^lib(cuda|nvidia-ml)\.so/ {print $1}')
  [ -z "$absent" ] || fail "NCCL's plugin $1 cannot be loaded" \
    "the image has no $(echo "$absent" | tr '\n' ' ')" \
    "Pass the packages or tarballs with these libraries, too" bad_plugin
}

"$@"
