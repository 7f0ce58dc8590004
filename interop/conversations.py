"""Conversations: ids and loss mask of a run, against transformers' `apply_chat_template` on the same records.

    conversations ─ tokmill run, the template as models have it ─> tokens, loss
                  ─ transformers, the same template with {% generation %} blocks ─> ids, assistant mask

Templates are written from the public definitions of the formats: ChatML (as Qwen 2.5 has it, with its
system message), Llama 3 (headers, a trimmed text), Zephyr (text for roles), Mistral (a blank before the
answer). transformers gives no end of document: ours is left out of the comparison, but for its mask. The
tokenizer splits as those of Llama 3 and Qwen do. One that splits as GPT-2 does looks ahead, and gives
"\\n\\n" other ids before a word than at the end of a prompt: there our cut before an answer is that of the
prompt, and transformers has none.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

import tokmill
from rows import Differs, Row, row_of, run_script

COUNT = 240

CONTROLS = (
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]",
)  # fmt: skip

CHATML = """{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}
{{- '\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
"""

LLAMA3 = """{%- for message in messages -%}
{%- if loop.first -%}{{- bos_token -}}{%- endif -%}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] | trim + '<|eot_id|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] | trim + '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'assistant' %}
{{ '<|assistant|>\\n' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\\n' }}
{%- else %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}
{%- endif %}
{% endfor %}"""

MISTRAL = """{{- bos_token -}}
{%- set system = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' -%}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}
{{- '[INST] ' -}}{%- if loop.index <= 2 -%}{{- system -}}{%- endif -%}{{- message['content'] + ' [/INST]' -}}
{%- elif message['role'] == 'assistant' -%}
{%- generation -%}{{- ' ' + message['content'] + eos_token -}}{%- endgeneration -%}
{%- endif -%}
{%- endfor -%}
"""

# How Llama 3 splits a text into words, as its tokenizer.json says.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

# template, bos, eos
MODELS = {
    "chatml": (CHATML, "<|im_start|>", "<|im_end|>"),
    "llama3": (LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    "zephyr": (ZEPHYR, "<s>", "</s>"),
    "mistral": (MISTRAL, "<s>", "</s>"),
}

_TAG = re.compile(r"{%(-?) *(?:end)?generation *(-?)%}")


def make_conversations() -> list[dict[str, Any]]:
    """Answers do not begin with white space: there we cut, and transformers does not."""
    draw = random.Random(7)
    words = [
        "the",
        "mill",
        "turns",
        "ça",
        "va",
        "日本語",
        "🙂",
        "x = 1",
        "\n\n",
        "  ",
        "`code`",
        "1234",
        "It's",
        "…",
        "<b>",
    ]
    found = []
    for number in range(COUNT):
        messages = []
        if number % 3 == 0:
            messages.append({"role": "system", "content": f"Be brief, {number}."})
        for _ in range(1 + number % 4):
            said = " ".join(draw.choices(words, k=draw.randint(1, 20)))
            answer = " ".join(draw.choices(words, k=draw.randint(1, 30))).strip() or "Yes."
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        if number % 5 == 0:
            messages.append({"role": "user", "content": "and then?"})
        found.append({"id": f"c{number:04d}", "messages": messages})
    return found


def train_tokenizer(records: list[dict[str, Any]], path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", *CONTROLS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ("\n\n".join(message["content"] for message in one["messages"]) for one in records)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def run_ours(name: str, template: str, bos: str, eos: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    config = {"chat_template": template, "bos_token": bos, "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    recipe = {
        "name": name,
        "sources": [
            {
                "name": "talk",
                "files": str(folder.parent / "records.jsonl"),
                "fields": {"id": "id"},
                "chat": {"template": str(folder / "tokenizer_config.json")},
            }
        ],
        "dedup": {"exact": False},
        "split": {"valid_fraction": 0},
        "tokenizer": {"path": str(folder.parent / "tokenizer.json"), "eos": "<|endoftext|>"},
        "builds": [],
    }
    out = Path(tokmill.run(recipe, folder / "out").out)
    found = {}
    for path in sorted((out / "tokens" / "train").rglob("tokens-*.bin")):
        ids = np.fromfile(path, np.uint16)
        loss = np.fromfile(path.with_name(path.name.replace("tokens-", "loss-")), np.uint8)
        table = pq.read_table(
            path.with_name(path.name.replace("tokens-", "lengths-")).with_suffix(".parquet")
        )
        ends = np.cumsum(table.column("tokens").to_numpy())
        for doc_id, own, mask in zip(
            table.column("doc_id").to_pylist(),
            np.split(ids, ends[:-1]),
            np.split(loss, ends[:-1]),
            strict=True,
        ):
            found[doc_id] = (own.tolist(), mask.tolist())
    return out, found


def compare(
    name: str, python: Path, script: Path, folder: Path, records: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the page says of a template: as models have it, and with its blocks of generation."""
    tagged, bos, eos = MODELS[name]
    plain = _TAG.sub(lambda found: "{#" + found[1] + " " + found[2] + "#}", tagged)
    told: dict[str, Any] = {}
    for kind, template in (("plain", plain), ("tagged", tagged)):
        own = folder / f"{name}-{kind}"
        own.mkdir()
        out, ours = run_ours(name, template, bos, eos, own)
        config = {"tokenizer": str(out / "tokenizer/tokenizer.json"), "bos_token": bos, "eos_token": eos}
        (own / "theirs.json").write_text(json.dumps({**config, "plain": plain, "tagged": tagged}))
        told = run_script(python, script, own / "theirs.json", folder / "records.jsonl", own / "theirs.jsonl")
        if "missing" in told:
            return told
        lines = (own / "theirs.jsonl").read_text(encoding="utf-8").splitlines()
        told["documents"] = _equal(name, records, ours, lines)
    return told | {"compared": "`apply_chat_template`: every id, and which of them are learned"}


def _equal(name: str, records: list[dict[str, Any]], ours: dict[str, Any], lines: list[str]) -> int:
    for record, line in zip(records, lines, strict=True):
        theirs = json.loads(line)
        ids, mask = ours[record["id"]]
        if ids[:-1] != theirs["ids"] or mask[:-1] != theirs["mask"]:
            raise Differs(f"{name} {record['id']}: {ids} {mask}, and theirs {theirs}")
        if mask[-1] != int(record["messages"][-1]["role"] == "assistant"):
            raise Differs(f"{name} {record['id']}: the mask of its end is {mask[-1]}")
    return len(records)


def render_alike(python: Path, scripts: list[Path], folder: Path) -> list[Row]:
    records = make_conversations()
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    train_tokenizer(records, folder / "tokenizer.json")
    (script,) = scripts
    return [row_of(name, compare(name, python, script, folder, records), "documents") for name in MODELS]
