"""Lets pytest import the modules of this folder by the names that the script uses."""

from __future__ import annotations

import sys
from pathlib import Path

# The script needs transformers, which the tests of this project do not install; tests/huggingface/run.sh runs it.
collect_ignore = ["trainer.py"]

_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:
    sys.path.append(_HERE)
