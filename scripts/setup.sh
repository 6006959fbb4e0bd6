#!/usr/bin/env bash
# Makes .venv with everything that builds and tests need; does nothing when it is there and up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.anynpu-ready
wanted=$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

# tflite-micro has wheels for Python 3.11, and none for later versions.
python=""
for candidate in python3.11 python3.12 python3.13 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "anynpu needs Python 3.11 or later; install python3.11 and python3.11-venv" >&2
  exit 4
fi

echo "setting up .venv with $("$python" --version): about 2.5 GB, a few minutes" >&2
"$python" -m venv .venv
pip=".venv/bin/python -m pip --disable-pip-version-check install --quiet"

# PyTorch's own index has a build without CUDA; elsewhere the same version may bring gigabytes of it.
cpu=https://download.pytorch.org/whl/cpu
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  if .venv/bin/python -c "import urllib.request; urllib.request.urlopen('$cpu/torch/', timeout=5)" 2>/dev/null; then
    $pip torch==2.13.0 --index-url "$cpu"
  else
    $pip torch==2.13.0
  fi
fi
$pip -e '.[build,dev]'
echo "$wanted" > "$stamp"
