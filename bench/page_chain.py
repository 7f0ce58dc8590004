"""The sections of docs/performance.md about the whole chain: end to end, against size, stage by stage."""

from __future__ import annotations

from page_tables import Results, paragraph, percent, table

SETTINGS = {
    "filtered": "English only; what a rule refuses is dropped, and later stages see what is left",
    "all kept": "the same work on every document; only duplicates are dropped",
}
READS_TEXT = ("ingest+clean", "ingest", "clean", "dedup", "tokens")


def end_to_end(results: Results) -> list[str]:
    found = results.json("end_to_end")
    if found is None:
        return []
    lines = [
        "## End to end",
        "",
        *paragraph(
            "Read, language, the four packs, exact and near duplicates, gpt2 tokens, rows of 2,048: `tokmill "
            "run` as a process of its own, start-up, manifests and fsyncs included (`bench/end_to_end.py`). "
            "Two settings:"
        ),
        "",
        *(f"- {name}: {what}" for name, what in SETTINGS.items()),
        "",
        *table(
            [
                "setting",
                "workers",
                "MB / CPU s",
                "CPU s",
                "wall s",
                "peak RSS MB",
                "documents",
                "left",
                "tokens",
            ],
            [
                [
                    f["setting"],
                    f["workers"],
                    f"**{f['mb_per_cpu_s']:.1f}**",
                    f"{f['cpu_s']:.1f}",
                    f"{f['wall_s']:.1f}",
                    f"{f['peak_rss_mb']:,}",
                    f"{f['documents']:,}",
                    f"{f['left']:,}",
                    f"{f['tokens']:,}",
                ]
                for f in found["runs"]
            ],
        ),
        "",
    ]
    if not found["peers"]:
        return [*lines, "datatrove was not at hand (`--datatrove PYTHON`)."]
    rows = []
    for setting in SETTINGS:
        ours = next(f for f in found["runs"] if f["setting"] == setting)
        spacy, plain = (p for p in found["peers"] if p["setting"] == setting)
        # the sample is small and start-up is nearly all of its time:
        # what the rest of the text costs on top of it
        more = (ours["text_mb"] - spacy["text_mb"]) / (ours["cpu_s"] - spacy["sample_cpu_s"])
        for name, speed in (("", ours["mb_per_cpu_s"]), (", start-up left out", more)):
            cells = [f"{setting}{name}", f"{speed:.1f}"]
            for peer in (spacy, plain):
                cells += [f"{peer['mb_per_cpu_s']:.3f}", f"**{speed / peer['mb_per_cpu_s']:,.0f} x**"]
            rows.append([*cells, f"{spacy['sample_left']:,}", f"{spacy['documents']['left']:,}"])
    peer = found["peers"][0]
    return [
        *lines,
        *paragraph(
            f"The same chain in datatrove {peer['version']}, one process, on {peer['documents']['in']:,} of "
            f"these documents ({peer['text_mb']:.1f} MB, all sources), MB of text per CPU second. Its "
            "start-up is always left out, ours is in where nothing is said; its cost per document does not "
            "depend on how many there are, so the sample stands for the whole. Without spaCy its words are "
            "those of `str.split`, and its sentences end at . ? and ! `left` is of the sample."
        ),
        "",
        *table(
            ["setting", "tokmill", "datatrove", "ratio", "without spaCy", "ratio", "left here", "left there"],
            rows,
        ),
    ]


def growth(results: Results) -> list[str]:
    found = results.json("end_to_end")
    if found is None:
        return []
    parts = found["growth"]
    first, last = parts[0], parts[-1]
    each = (last["cpu_s"] - first["cpu_s"]) / (last["text_mb"] - first["text_mb"])
    keys = ("text_mb", "cpu_s", "mb_per_cpu_s", "wall_s")
    rows = [[f"{f['times']} x", *(f"{f[key]:.1f}" for key in keys), f"{f['peak_rss_mb']:,}"] for f in parts]
    return [
        "## Cost against input size",
        "",
        "One document in 16, one in 4, and all; one worker, all kept.",
        "",
        *table(["input", "MB", "CPU s", "MB / CPU s", "wall s", "peak RSS MB"], rows),
        "",
        *paragraph(
            f"From the smallest to the largest each further MB costs {1000 * each:.0f} ms of CPU"
            f"{f': {1 / each:.1f} MB per CPU second' if each > 0 else ''}. "  # a quick run's can be none
            f"The rest, {first['cpu_s'] - each * first['text_mb']:.1f} s, is start-up."
        ),
    ]


def stages(results: Results) -> list[str]:
    found, limits = results.json("stages"), results.json("limits")
    if found is None or limits is None:
        return []
    rows = []
    for f in found:
        disk = f["read_mb"] / limits["disk_read_mb_s"] + f["written_mb"] / limits["disk_write_mb_s"]
        memory = 2 * f["text_mb"] / limits["memory_copy_mb_s"]
        tokenizer = f["text_mb"] / limits["tokenizer_mb_per_cpu_s"]
        rows.append(
            [
                f["stage"],
                f"{f['mb_per_cpu_s']:,.1f}",
                f"{f['cpu_s']:.2f}",
                f"{f['wall_s']:.2f}",
                f"{f['peak_rss_mb']:,}",
                f"{f['read_mb']:,.0f}",
                f"{f['written_mb']:,.0f}",
                percent(disk / f["wall_s"]),
                percent(memory / f["cpu_s"]) if f["stage"] in READS_TEXT else "",
                percent(tokenizer / f["cpu_s"]) if f["stage"] == "tokens" else "",
            ]
        )
    head = ["stage", "MB / CPU s", "CPU s", "wall s", "peak RSS MB", "read MB", "written MB"]
    return [
        "## Stages, and how far each is from its limit",
        "",
        *paragraph(
            f"The disk writes {limits['disk_write_mb_s']:,.0f} MB/s (with fsync) and reads "
            f"{limits['disk_read_mb_s']:,.0f}; memory is copied at {limits['memory_copy_mb_s'] / 1000:,.1f} "
            f"GB/s (read and written); the tokenizer alone encodes {limits['tokenizer_mb_per_cpu_s']:,.0f} "
            "MB of this text per CPU second (`bench/limits.py`). A share says how much of a stage's time "
            "the limit alone would take: 100 % is a stage that does nothing else. One worker, all kept "
            "(`bench/stages.py`); `ingest+clean` is what a run does in one pass. Files that are mapped are "
            "not counted as read."
        ),
        "",
        *table([*head, "disk", "one memory copy", "tokenizer core"], rows),
    ]
