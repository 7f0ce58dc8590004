"""What a run did, on one page and as figures.

    run directory ─ found ─> artifacts that hold together
      manifests ─────────── flow, drops, packing, mixture, chain ┐
      tables, a shard at a time ─ tally, examples, alike, fates ──┴─ facts ─> report.json
                                                                      └─ page, charts ─> report.html

`facts` is the only door: the page shows what is in it and nothing else, so both files have the same figures.
"""
