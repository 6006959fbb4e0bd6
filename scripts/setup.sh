#!/usr/bin/env bash
# Makes .venv with everything that builds and tests need; does nothing when it is there and up to date.
# PYTHON names the interpreter; by default it is the first of python3.11, python3.12, python3.13, python3.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.anynpu-ready
wanted=$(cat pyproject.toml requirements.lock scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

python=""
for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "anynpu needs Python 3.11 or later; install python3.11 and python3.11-venv" >&2
  exit 4
fi

started=$SECONDS
# What an interrupted installation left behind may lack any file.
unfinished=.venv/.anynpu-unfinished
[ ! -f "$unfinished" ] || rm -rf .venv
mkdir -p .venv
touch "$unfinished"
echo "setting up .venv with $("$python" --version): about 1.8 GB, a few minutes" >&2
# uv is several times as fast as pip. It does not read pip's configuration: where pip looks for packages is passed on.
if command -v uv >/dev/null; then
  export UV_FIND_LINKS="${UV_FIND_LINKS-${PIP_FIND_LINKS-}}" UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX-${PIP_INDEX_URL-}}"
  [ -n "$UV_FIND_LINKS" ] || unset UV_FIND_LINKS
  [ -n "$UV_DEFAULT_INDEX" ] || unset UV_DEFAULT_INDEX
  uv venv --quiet --allow-existing --seed --python "$python" .venv
  install="uv pip install --quiet --python .venv/bin/python --constraint requirements.lock"
else
  "$python" -m venv .venv
  install=".venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint requirements.lock"
fi

# PyTorch's own index has a build without CUDA; elsewhere the same version may bring gigabytes of it.
cpu=https://download.pytorch.org/whl/cpu
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  if .venv/bin/python -c "import urllib.request; urllib.request.urlopen('$cpu/torch/', timeout=5)" 2>/dev/null; then
    $install torch==2.13.0 --index-url "$cpu"
  else
    $install torch==2.13.0
  fi
fi
$install -e '.[build,dev]'
echo "$wanted" > "$stamp"
rm "$unfinished"
echo "set up in $((SECONDS - started)) s" >&2
