#!/usr/bin/env bash
# Writes requirements.lock (the versions of everything that pyproject.toml asks for, for Python 3.11 and later) and the
# lock files of the vendors' toolchains.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
  echo "uv is not installed: pip install uv" >&2
  exit 4
fi
versions=$(uv pip compile --quiet --universal --python-version 3.11 --extra build --extra dev \
  --no-annotate --no-header --upgrade pyproject.toml)
{
  echo '# The versions that `make setup` installs, for Python 3.11 and later; `make lock` finds them anew.'
  echo '# Without what only a PyTorch with CUDA brings.'
  # uv passes over the upper bounds of Requires-Python, pip does not: backports.strenum 1.3.1 is not for Python 3.11.
  echo "$versions" | grep -v -E '^(nvidia-|cuda-|triton|backports-strenum)'
} > requirements.lock.part
mv requirements.lock.part requirements.lock
.venv/bin/python scripts/lock_toolchains.py
