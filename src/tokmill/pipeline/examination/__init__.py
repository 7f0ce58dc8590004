"""Every mistake that can be known before any work, at once: `recipe check`, `plan` and `run` begin with it.

    keys and values (recipe/file.py) ──────────────────────────┐
    files · packs, licences, languages · code of others ───────┼─> all of them by line, or the recipe
    tokenizer, builds, mixture · budget, disk, output directory┘

Nothing is written, no file is read whole, and nothing is asked of a network: what a hub or an object store
holds is known to the plan. A file that the last run has read is not opened again.

examine     the recipe, if nothing is wrong with it; else an error that lists all that is
mistakes    those found so far
"""
