"""transformers renders, encodes and masks conversations: CONFIG (tokenizer file, templates, bos and eos) and
RECORDS (JSON lines: messages) in, one line of {"ids", "mask"} for each out."""

import json
import sys
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerFast

config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
tokenizer = PreTrainedTokenizerFast(
    tokenizer_file=config["tokenizer"], bos_token=config["bos_token"], eos_token=config["eos_token"]
)
with Path(sys.argv[3]).open("w", encoding="utf-8") as out:
    for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        plain = tokenizer.apply_chat_template(
            messages, chat_template=config["plain"], tokenize=True, return_dict=True
        )
        tagged = tokenizer.apply_chat_template(
            messages,
            chat_template=config["tagged"],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert tagged["input_ids"] == plain["input_ids"]
        mask = tagged["assistant_masks"]
        out.write(json.dumps({"ids": plain["input_ids"], "mask": [int(one) for one in mask]}) + "\n")
print(json.dumps({"package": "transformers", "version": transformers.__version__}))
