#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# As SageMaker's SDK v3 starts a script: a shell that stops at errors, then a driver.
set -e
handle_error() {
  EXIT_STATUS=$?
  [ -s /opt/ml/output/failure ] || echo "Training Execution failed." >> /opt/ml/output/failure
  exit $EXIT_STATUS
}
trap 'handle_error' ERR
set -x
cd /opt/ml/code
python3 /opt/ml/input/data/sm_drivers/driver.py
echo "Training Container Execution Completed"
