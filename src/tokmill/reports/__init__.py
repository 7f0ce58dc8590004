"""What a run did, on one page and as figures.

    run directory ─ find_artifacts ─> artifacts that hold together
      manifests ──────────────────────────────┐
      tables, a shard at a time ─ drops, tally, flow ─┴─ facts ─┬─> report.json
                                                                ├─ sections, charts ─ page ─> report.html
                                                                └─ cards ─> DATACARD.md, croissant.json
    manifests of verbs without a recipe ─ verbs ─> the same two files
    a web page ─ webpage ─> its blocks with verdicts beside its text, one file

`facts` is the only door: the page shows what is in it and nothing else, so both files have the same figures.
"""
