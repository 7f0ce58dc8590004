"""The corpus that `tokmill demo` mills, from what every machine has and what was written for it.

    corpus/code.jsonl.zst    the standard library's own modules          domain code
    corpus/topics.parquet    the language reference that pydoc carries   domain prose
    corpus/problems.jsonl    generated arithmetic word problems          domain math
    corpus/paragraphs.txt    original paragraphs in ten languages        domain multilingual
    recipe.yaml              mills the four of them

One file of each input format, no download.
"""
