#!/usr/bin/env bash
# Makes an environment with torch_xla, which binds a torch of its own (7 GB, some minutes), and runs the tests that need
# it on CPU devices.
#
#     bash tests/xla/run.sh [ENVIRONMENT]      # .venv-xla if not given; used again if it is there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
environment=${1:-.venv-xla}

[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --editable '.[xla]' 'ml_dtypes>=0.4' 'pytest>=8.2' 'pytest-timeout>=2.3'

export PJRT_DEVICE=CPU XLA_THREAD_POOL_SIZE=8 OMP_NUM_THREADS=1
run() {
  CPU_NUM_DEVICES=$1 "$environment/bin/python" -m pytest -c tests/xla/pytest.ini --rootdir . "${@:2}"
}
run 4 tests/xla
for count in 1 2; do # the number of devices is one a process
  run "$count" tests/xla/test_xla_contract.py
done
