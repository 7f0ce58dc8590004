#!/usr/bin/env bash
# A first afternoon: seven sources, a recipe with mistakes, a run, six changes of mind, the way back, damage, questions.
# Runs in an empty directory with `tokmill` on the path. What it prints is in afternoon.txt beside it.
set -euo pipefail

say() { printf '\n== %s\n' "$*"; }
# What a run did, and what is proven afterwards.
run() {
    tokmill -q run recipe.yaml --out out --workers 1 --json "$@" | python -c '
import json, sys
run = json.load(sys.stdin)
print("made again:", ", ".join(run["ran"]) or "nothing")
if run.get("restored"):
    print("back as before:", ", ".join(run["restored"]))'
}
digest() { tokmill -q verify out --json | python -c 'import json, sys; print(json.load(sys.stdin)["digest"])'; }
change() { sed -i.bak "$1" recipe.yaml; }

say "seven sources"
tokmill -q demo --out first --workers 1 > demo.log
python - <<'PYTHON'
import json, pathlib, random

corpus = pathlib.Path("first/corpus")
problems = [json.loads(line) for line in (corpus / "problems.jsonl").read_text("utf-8").splitlines()]
paragraphs = (corpus / "paragraphs.txt").read_text("utf-8").split("\n\n")
data = pathlib.Path("data")
data.mkdir()
chance = random.Random(7)


def write(name, records):
    (data / name).write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")


write("faq.jsonl", [{"id": f"q{n}", "text": p["question"]} for n, p in enumerate(problems[:900])])
write("mirror.jsonl", [{"id": f"m{n}", "text": p["question"]} for n, p in enumerate(problems[300:800])])
write("web.jsonl", [
    {"id": f"w{n}", "text": " ".join(chance.choice("the mill river wheel grain flour stone sack baker bread".split())
                                     for _ in range(chance.randint(3, 60))) + "."}
    for n in range(2000)
])
(data / "letters.txt").write_text("\n\n".join(paragraphs[::2]), "utf-8")
PYTHON
cp first/corpus/* data/
ls data

say "a recipe with mistakes: all of them, before any work"
cat > recipe.yaml <<'YAML'
name: afternoon
sources:
  - {name: code, domain: code, files: data/code.jsonl.zst, fields: {text: content, id: path}}
  - {name: topics, domain: prose, files: data/topics.parqet, fields: {id: topic}}
  - {name: problems, domain: math, files: data/problems.jsonl, template: "{question}\n{answer}"}
  - {name: faq, domain: math, files: data/faq.jsonl}
  - {name: mirror, domain: math, files: data/mirror.jsonl}
  - {name: web, domain: web, files: data/web.jsonl}
  - {name: letters, domain: prose, files: data/letters.txt, unit: paragraf}
filters:
  - {measure: wrods, min: 5}
dedup: {near: {treshold: 0.8}}
tokenizer: {train: {model: byte_bpe, vocab_size: 1024}, eos: "<eos>"}
mixture: {weights: {code: 0.3, prose: 0.3, math: 0.2, wab: 0.2}}
pack: {length: 128}
builds:
  - {name: rows, format: memmap}
YAML
tokmill recipe check recipe.yaml 2>&1 || true

say "mended: a first run"
change 's/parqet/parquet/; s/paragraf/paragraph/; s/wrods/words/; s/treshold/threshold/; s/wab: 0.2/web: 0.2/'
cp recipe.yaml first.yaml
run
first=$(digest)

say "a smaller length"
change 's/length: 128/length: 64/'
run --keep-previous

say "other weights"
change 's/code: 0.3/code: 0.2/; s/web: 0.2}/web: 0.3}/'
run --keep-previous

say "a stricter filter"
change 's/measure: words, min: 5/measure: words, min: 8/'
tokmill plan recipe.yaml --out out | sed -n 1,4p
run --keep-previous

say "a larger vocabulary"
change 's/vocab_size: 1024/vocab_size: 1200/'
run --keep-previous

say "without the mirror"
change '/name: mirror/d'
run --keep-previous

say "another threshold for near duplicates"
change 's/threshold: 0.8/threshold: 0.7/'
run --keep-previous

say "and back to the first recipe"
cp first.yaml recipe.yaml
run --keep-previous
test "$(digest)" = "$first" && echo "the digest is that of the first run"

say "what is kept for that, and freed"
tokmill gc out --json | python -c 'import json, sys; print(sorted({item["what"].split(" of ")[0] for item in json.load(sys.stdin)["found"]}))'
tokmill -q gc out --delete > freed.log
ls -d out.previous 2> /dev/null || echo "nothing is kept any more"

say "a flipped bit, and the way out"
python -c '
import pathlib
path = pathlib.Path("out/build/rows/train/input_ids.mmap")
data = bytearray(path.read_bytes())
data[1000] ^= 1
path.write_bytes(data)'
tokmill verify out 2> /dev/null | grep -v digest || true
run --verify
tokmill verify out 2> /dev/null | sed -n 1,1p

say "questions"
tokmill why out q0 2> /dev/null | sed -n 1,3p
tokmill why out --reason exact_dup 2> /dev/null | sed -n 1,3p
