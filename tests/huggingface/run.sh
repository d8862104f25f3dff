#!/usr/bin/env bash
# Makes an environment with transformers and accelerate (1.2 GB, a minute), and runs the example of the Trainer in it.
#
#     bash tests/huggingface/run.sh [ENVIRONMENT]      # .venv-huggingface if not given; used again if it is there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
environment=${1:-.venv-huggingface}

[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --editable . torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 \
  'pytest>=8.2' 'pytest-timeout>=2.3'
exec "$environment/bin/python" -m pytest -c tests/huggingface/pytest.ini --rootdir . tests/huggingface
