"""The mill again, slow and obvious: what a recipe means, in plain Python.

    reading      files -> records -> documents            docs/inputs.md
    cleaning     documents -> texts, verdicts             docs/measures.md, docs/licenses.md
    measures     a text -> numbers                        docs/measures.md
    duplicates   kept documents -> survivors              docs/near-duplicates.md, docs/urls.md
    splitting    survivors -> train, valid, test          docs/splits.md
    tokens       texts -> ids, by the reference library   docs/tokenizing.md
    mixing       lengths -> turns, by weight and budget   docs/mixtures.md
    packing      turns -> rows                            docs/packing.md
    formats      rows -> the bytes of a build             docs/reference/formats.md
    mill         all of it, from a recipe to what a run must contain
    compare      a finished run, read with pyarrow and numpy alone, against it

Nothing here imports tokmill. A corpus is a list in memory, one process does everything in the order of the
recipe, and speed does not matter. Where this code and the mill differ, one of the two, or the page named
above, is wrong.
"""
