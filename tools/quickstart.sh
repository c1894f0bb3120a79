#!/usr/bin/env bash
# From nothing to a trained model: packages, build, corpus, tokenizer, training, perplexity.
#   tools/quickstart.sh [--text DIR]
# --text DIR   train on the *.txt files of DIR instead of the text sources of Debian's Python documentation
# Every stage is skipped when its result is there; interrupt it at any time and start it again.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/packages.sh

text=
while [ $# -gt 0 ]; do
  case $1 in
    --text) text=${2:?--text needs a directory}; shift 2 ;;
    --help | -h) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "error: unknown argument '$1'; see tools/quickstart.sh --help" >&2; exit 2 ;;
  esac
done
if [ -n "$text" ] && [ ! -d "$text" ]; then
  echo "error: $text: no such directory" >&2
  exit 2
fi

stage() { printf '\n== %s\n' "$*"; }
relume=build/cpu-release/relume corpus=data/corpus run=runs/quickstart config=configs/quickstart.json

stage "packages"
packages=("${RELUME_BUILD_PACKAGES[@]}")
[ -n "$text" ] || [ -f $corpus/tokenizer.model ] || packages+=("${RELUME_CORPUS_PACKAGES[@]}")
ensure_packages "${packages[@]}"

stage "build"
[ -f build/cpu-release/build.ninja ] || cmake --preset cpu-release -DRELUME_TESTS=OFF >/dev/null
cmake --build --preset cpu-release --target relume

if [ -z "$text" ]; then
  for directory in /usr/share/doc/python3*/html/_sources; do [ -d "$directory" ] && text=$directory; done
  if [ -z "$text" ] && [ ! -f $corpus/val_000000.bin ]; then
    echo "error: python3-doc has no html/_sources here; give a directory of *.txt files with --text DIR" >&2
    exit 2
  fi
fi

stage "tokenizer: $corpus/tokenizer.model"
mkdir -p $corpus
[ -f $corpus/tokenizer.model ] || $relume tokenize train --kind bpe --vocab-size 4096 --in "$text" --out $corpus/tokenizer.model

stage "corpus: $corpus"
if [ ! -f $corpus/.complete ]; then
  rm -f $corpus/train_*.bin $corpus/val_*.bin
  $relume tokenize shard --tokenizer $corpus/tokenizer.model --in "$text" --out $corpus --validation-fraction 0.05
  touch $corpus/.complete
fi

stage "training: $config"
steps=$($relume config show $config | sed -n 's/^ *"steps": \([0-9]*\),*$/\1/p')
last=$run/checkpoints/$(printf 'step-%08d' "$steps")
if [ ! -f "$last/manifest.json" ]; then
  resume=
  ls -d $run/checkpoints/step-* >/dev/null 2>&1 && resume=--resume
  if [ -z "$resume" ] && [ -e $run/metrics.jsonl ]; then
    rm -rf $run  # stopped before its first checkpoint
  fi
  $relume train $config $resume
fi

stage "perplexity on held-out text"
$relume eval "$last" --data "$corpus/val_*.bin" --context 256

stage "a sample"
$relume generate "$last" --prompt "The " --max-tokens 80 --temperature 0.8 --top-p 0.95 --seed 1

cat <<EOT

The run:            $run
The model:          $last   (a Hugging Face directory)
The plan picture:   $run/plan.svg
Loss by step:       $run/metrics.jsonl
EOT
