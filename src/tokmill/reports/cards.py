"""Two cards of a run, from measured facts of what was built:
DATACARD.md for the Hugging Face Hub, croissant.json for everybody.

    facts of the report ─┬─ front matter (YAML between two lines of dashes, in the Hub's own words)
                         │  + sections ─> DATACARD.md
                         └─ Croissant 1.0 (schema.org) ─> croissant.json
                              distribution   every file of every build, by its place in the run, with its
                                             sha256
                              record sets    for Parquet builds, which others can read by column

Names come from sources and recipes: none of them can break a table or bring markup of its own. What nobody
measured is not said: who publishes the dataset adds `url`, `creator`, `citeAs` and `datePublished`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tokmill.artifacts.cells import visible
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import FileEntry, Json
from tokmill.artifacts.upstream import UNKNOWN
from tokmill.audit.opened import Found, find_artifacts
from tokmill.clean.licenses import find_license
from tokmill.errors import plural
from tokmill.formats.parquet import COLUMNS
from tokmill.publish.hub_card import HUB_SPLITS, hub_license, name_others, scalar, size_category, yaml_list
from tokmill.reports.charts import NOT_MEASURED, count, percent, spoken
from tokmill.reports.edits import decided_by, is_redaction
from tokmill.reports.page import resource
from tokmill.storage.disk import commit_bytes

CARD, CROISSANT = "DATACARD.md", "croissant.json"
_LITTLE = 0.001  # of the tokens of a build: of a language, hardly more than the mistakes of its detector


class Cards(NamedTuple):
    card: Path
    croissant: Path


def write_cards(directory: str | Path, out: str | Path, facts: Json) -> Cards:
    """Both into the directory `out`; `facts` are those of the report of the run."""
    croissant = describe_croissant(find_artifacts(directory), facts, summarize(facts))
    cards = Cards(Path(out) / CARD, Path(out) / CROISSANT)
    commit_bytes(cards.card, render_card(facts).encode())
    commit_bytes(cards.croissant, json.dumps(croissant, indent=2, ensure_ascii=False).encode() + b"\n")
    return cards


def summarize(facts: Json) -> str:
    """Of what was built, where something was."""
    totals, sources = facts["totals"], facts["sources"]
    tokens = f", {totals['tokens']:,} tokens" if totals["tokens"] is not None else ""
    documents = totals["kept"]
    if facts["builds"]:
        sources = [source for source in sources if source["built"]["licenses"]]
        documents = totals["documents_in_builds"]
        written = [(f"{amount:,} tokens", name) for name, amount in totals["tokens_written"].items()]
        named = "".join(f", {told} in the build {name}" for told, name in written)
        tokens = f"{named}," if len(written) > 1 else f", {written[0][0]}"
    state = "" if facts["run"]["is_finished"] else " The run that makes it is not finished."
    return (
        f"{plural(documents, 'document')}{tokens} from {plural(len(sources), 'source')}, "
        f"of {plural(totals['records'], 'record')} that were read.{state}"
    )


def render_card(facts: Json) -> str:
    sections = [
        front_matter(facts),
        f"# {_line(facts['run']['name'])}\n",
        (
            f"{_line(summarize(facts))} Made by tokmill; every figure here is measured, and `report.html` "
            "shows more.\n"
        ),
        _sources(facts),
        _processing(facts),
        _composition(facts),
        _splits(facts),
        _licensing(facts),
        _provenance(facts),
    ]
    return "\n".join(section for section in sections if section)


def _line(value: object) -> str:
    """Names are anybody's: one line, no table cell broken, no markup of their own."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(visible(str(value)).split()))


def _code(value: object) -> str:
    """For between backticks, where nothing needs escaping but they."""
    return " ".join(visible(str(value)).replace("`", "'").split())


def _table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    marks = ["---" if at < left else "---:" for at in range(len(head))]
    lines = [head, marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _sources(facts: Json) -> str:
    builds = [build["name"] for build in facts["builds"]]
    rows = [
        [
            _line(source["name"]),
            _line(source["domain"] or NOT_MEASURED),
            _line(f"{source['dataset']} at {source['revision']}" if source["dataset"] else "files"),
            count(source["records"]),
            count(sum(source["built"]["licenses"].values()) if builds else source["kept_by_clean"]),
            *(map(count, source["built"]["tokens"].values()) if builds else ()),
        ]
        for source in facts["sources"]
    ]
    head = ["source", "domain", "from", "records", "built" if builds else "kept by cleaning"]
    return "## Sources\n\n" + _table([*head, *(f"tokens in {_line(build)}" for build in builds)], rows, 3)


def _processing(facts: Json) -> str:
    rows = [
        [
            drop["stage"],
            _line(spoken(drop["reason"])),
            _line(
                "; ".join(
                    dict.fromkeys(f"{b['measure']} {b['bound']} {b['threshold']}" for b in drop["bounds"])
                )
                or "–"
            ),
            count(drop["docs"]),
        ]
        for drop in facts["drops"]
    ]
    edits: Counter[str] = Counter()
    for source in facts["sources"]:
        edits.update(
            {name: docs for name, docs in (source["edited"] or {}).items() if not is_redaction(name)}
        )
    by_filters = " by the filters" if facts["left_out"] else ""
    text = f"## Processing\n\nWhat was left out{by_filters}, and why.\n\n"
    if rows:
        text += _table(["step", "reason", "bound", "documents"], rows, 3)
    else:
        text += "Nothing.\n" if facts["left_out"] else "Nothing was left out.\n"
    text += _left_out(facts)
    if edits:
        changed = _table(
            ["edit", "documents"], [[_line(spoken(name)), count(edits[name])] for name in sorted(edits)]
        )
        text += f"\nWhat cleaning changed in texts that it kept.\n\n{changed}"
    text += _redacted(facts) + _earlier(facts) + _decontaminated(facts)
    if facts["clusters"] is not None:
        text += (
            f"\nNear duplicates share at least {percent(facts['clusters']['threshold'], 0)} of their word "
            f"n-grams: {plural(facts['clusters']['clusters'], 'cluster')}, the largest of "
            f"{count(facts['clusters']['largest'])}.\n"
        )
    return text


def _left_out(facts: Json) -> str:
    if not facts["left_out"]:
        return ""
    rows = [
        [_line(row["step"]), _line(row["split"]), _line(spoken(row["reason"])), count(row["docs"])]
        for row in facts["left_out"]
    ]
    says = (
        "What the filters kept, and mixtures and builds left out of the training data. Each step by itself: "
        "one may have what another leaves out."
    )
    return f"\n{says}\n\n{_table(['step', 'split', 'reason', 'documents'], rows, 3)}"


def _redacted(facts: Json) -> str:
    if not facts["redactions"]:
        return ""
    of = "built_" if facts["builds"] else ""
    totals: Counter[str] = Counter()
    for row in facts["redactions"]:
        totals[row["kind"]] += row[f"{of}values"]
    told = ", ".join(f"{_line(spoken(kind))} {count(values)}" for kind, values in sorted(totals.items()))
    return f"\nRedacted in {'what was built' if of else 'what was kept'}: {told}.\n"


def _earlier(facts: Json) -> str:
    told = facts["earlier"]
    if told is None:
        return ""
    rows = [
        [_line(corpus["name"]), decided_by(corpus), count(corpus["equal"]), count(corpus["similar"])]
        for corpus in told["corpora"]
    ]
    head = ["earlier corpus", "similar by", "equal documents", "similar documents"]
    return f"\nDocuments that earlier corpora have were left out.\n\n{_table(head, rows, 2)}"


def _decontaminated(facts: Json) -> str:
    told = facts["decontamination"]
    if told is None:
        return ""
    rows = [
        [_line(file["name"]), *(count(file[key]) for key in ("items", "docs", "dropped", "built"))]
        for file in told["files"]
    ]
    head = ["benchmark", "items found", "in documents", "dropped for it", "still in a build"]
    return f"\nLooked for benchmark items, by {told['ngram']} words in a row.\n\n{_table(head, rows)}"


def shares_of(facts: Json, key: str) -> list[tuple[str, list[Json]]]:
    """By build, those that hold the same together and none that is empty; of a run without one, of what was
    encoded, or nothing."""
    groups: list[tuple[list[str], list[Json]]] = []
    for build in facts["builds"]:
        rows = build["shares"][key]
        names = next((names for names, known in groups if known == rows), None)
        if names is None:
            groups.append(([build["name"]], rows))
        else:
            names.append(build["name"])
    if groups:
        return [(", ".join(names), rows) for names, rows in groups if rows]
    return [("what was encoded", facts["shares"][key])] if facts["shares"] is not None else []


def _composition(facts: Json) -> str:
    text = ""
    for key in ("domain", "language"):
        for name, rows in shares_of(facts, key):
            text += f"\nBy {key}, in {_line(name)}:\n\n{_share_table(key, rows)}"
    return f"## Composition\n\nShares of tokens.\n{text}" if text else ""


def _splits(facts: Json) -> str:
    if not facts["builds"]:
        return ""
    rows = [
        [
            _line(build["name"]),
            _line(build["format"]),
            split["split"],
            count(
                next((row["docs"] for row in build["shares"]["split"] if row["name"] == split["split"]), 0)
            ),
            count(split["packing"]["written"]),
            percent(split["packing"]["padding_share"], 2),
        ]
        for build in facts["builds"]
        for split in build["splits"]
    ]
    tokenizer = facts["tokenizer"] or {}
    told = (
        f"`{_code(tokenizer.get('file'))}`, {count(tokenizer.get('vocab_size'))} ids, sha256 "
        f"`{tokenizer.get('sha256')}`"
    )
    head = ["build", "format", "split", "documents", "tokens", "padding"]
    others = ", ".join(f"`{_code(place)}`" for place in _loadable(facts)[1])
    besides = f"\n`load_dataset` reads one kind of files by name, and these by their paths: {others}.\n"
    text = f"## Splits and files\n\n{_table(head, rows, 3)}\nTokenizer: {told}.\n"
    return text + besides if others else text


def _licensing(facts: Json) -> str:
    shares = shares_of(facts, "license")
    text = "".join(f"In {_line(name)}:\n\n{_share_table('licence', rows)}\n" for name, rows in shares)
    return f"## Licences\n\n{text}What they ask for, by source: `ATTRIBUTION.md`.\n"


def _provenance(facts: Json) -> str:
    run = facts["run"]
    told = [f"- digest of the whole run: `{run['digest']}`"]
    if run["experiment_id"]:
        told.append(f"- experiment: `{run['experiment_id']}`")
    if run["missing"]:
        told.append(f"- **not finished**, missing: {_line(', '.join(run['missing']))}")
    told += [f"- {_line(w['where'])}: {_line(w['what'])}" for w in facts["warnings"]]
    return (
        "## Provenance and warnings\n\n" + "\n".join(told) + "\n\n`tokmill verify` proves every file of it.\n"
    )


def _share_table(label: str, rows: list[Json]) -> str:
    shown = rows if label == "licence" else _large(rows)
    cells = [
        [_line(row["name"]), count(row["tokens"]), percent(row["share"], 2), count(row["docs"])]
        for row in shown
    ]
    if len(shown) < len(rows):
        rest = [row for row in rows if row not in shown]
        tokens, docs = (sum(row[key] for row in rest) for key in ("tokens", "docs"))
        share = tokens / sum(row["tokens"] for row in rows)
        cells.append([f"{len(rest)} of at most 0.1 % each", count(tokens), percent(share, 2), count(docs)])
    return _table([label, "tokens", "share", "documents"], cells)


def _large(rows: list[Json]) -> list[Json]:
    whole = sum(row["tokens"] for row in rows)
    return [row for row in rows if row["tokens"] > _LITTLE * whole]


# --- front matter ---


def front_matter(facts: Json) -> str:
    licenses, languages = known_names(facts, "license"), known_names(facts, "language")
    names = list(dict.fromkeys(hub_license(name) for name in licenses))
    lines = ["---", f"pretty_name: {scalar(facts['run']['name'])}"]
    lines += yaml_list("license", names or ["unknown"])
    lines += name_others(licenses, license_url)
    if languages:
        lines += yaml_list("language", languages)
        lines += yaml_list("multilinguality", ["monolingual" if len(languages) == 1 else "multilingual"])
    totals = facts["totals"]
    documents = totals["documents_in_builds"] if facts["builds"] else totals["kept"]
    lines += yaml_list("size_categories", [size_category(documents)])
    lines += yaml_list("task_categories", ["text-generation"])
    lines += yaml_list("tags", ["tokenized", "tokmill"])
    lines += _configs(facts)
    return "\n".join([*lines, "---", ""])


def _configs(facts: Json) -> list[str]:
    lines = []
    for place, patterns in _loadable(facts)[0].items():
        lines += [f"- config_name: {scalar(place.partition('/')[2])}", "  data_files:"]
        for split, pattern in patterns.items():
            name = HUB_SPLITS.get(split, split)
            lines += [f"  - split: {scalar(name)}", f"    path: {scalar(f'{place}/{pattern}')}"]
    return ["configs:", *lines] if lines else []


def _loadable(facts: Json) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Patterns by split of the builds that `datasets` loads as they are, by place; and the places of those
    that it could load, but not beside them. It refuses a build of which one split has no row, and reads the
    files of all configs as the kind that the first one has."""
    found: dict[str, dict[str, str]] = {}
    for build in facts["builds"]:
        by_split = {one["split"]: one["hub_files"] for one in build["splits"]}
        found[f"build/{build['name']}"] = {split: p for split, p in by_split.items() if p is not None}
    for build in facts.get("texts", []):
        found[f"texts/{build['name']}"] = build["hub_files"]
    kinds = {place: _kind(next(iter(patterns.values()))) for place, patterns in found.items() if patterns}
    first = next(iter(kinds.values()), None)
    return (
        {place: found[place] for place, kind in kinds.items() if kind == first},
        [place for place, kind in kinds.items() if kind != first],
    )


def _kind(pattern: str) -> str:
    """Of files, whether they are compressed or not."""
    return PurePosixPath(pattern).name.lstrip("*.").partition(".")[0]


# --- croissant ---


_SPDX = "https://spdx.org/licenses/"


_TYPES = {
    ".parquet": "application/x-parquet",  # as the specification and mlcroissant call it
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".zst": "application/zstd",
    ".npy": "application/x-npy",
}


def describe_croissant(found: Found, facts: Json, description: str) -> Json:
    builds = found.of_kind("build")
    licenses = known_names(facts, "license")
    languages = known_names(facts, "language")
    return {
        "@context": json.loads(resource("croissant_context.json")),
        "@type": "sc:Dataset",
        "name": found.name,
        "description": description,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        **({"license": [license_url(name) for name in licenses]} if licenses else {}),
        **({"inLanguage": languages} if languages else {}),
        "identifier": f"sha256:{facts['run']['digest']}",
        "keywords": ["tokens", "language modeling"],
        "isLiveDataset": False,
        "distribution": [
            part
            for name, build in builds.items()
            for part in (*_files(name, build), *_file_sets(name, build))
        ],
        "recordSet": [part for name, build in builds.items() for part in _record_sets(name, build)],
    }


def known_names(facts: Json, key: str) -> list[str]:
    """Licences or languages of what was built, or else encoded, or else cleaned;
    the most first, unknown never, and no language that has too little."""
    totals: Counter[str] = Counter()
    shares = shares_of(facts, key)
    for _, rows in shares:
        for row in _large(rows) if key == "language" else rows:
            totals[row["name"]] = max(totals[row["name"]], row["tokens"])
    for source in facts["sources"] if not shares else ():
        totals.update({name: total["docs"] for name, total in (source[f"{key}s"] or {}).items()})
    return [name for name in sorted(totals, key=lambda name: (-totals[name], name)) if name != UNKNOWN]


def license_url(name: str) -> str:
    """Of a licence that SPDX lists; an expression or another name stays as it is."""
    is_listed = find_license(name) == name and not name.startswith("LicenseRef-")
    return f"{_SPDX}{name}.html" if is_listed else name


def _files(name: str, build: Artifact) -> list[Json]:
    return [
        {
            "@type": "cr:FileObject",
            "@id": _path(name, entry),
            "name": _path(name, entry),
            "contentUrl": _path(name, entry),
            "contentSize": f"{entry.bytes} B",
            "encodingFormat": _TYPES.get(PurePosixPath(entry.path).suffix, "application/octet-stream"),
            "sha256": entry.sha256,
        }
        for entry in build.manifest.files
    ]


def _path(name: str, entry: FileEntry) -> str:
    return f"build/{name}/{entry.path}"


def _parquet_splits(build: Artifact) -> list[str]:
    shards = [entry.path for entry in build.manifest.files if entry.path.endswith(".parquet")]
    return list(dict.fromkeys(str(PurePosixPath(path).parent) for path in shards))


def _file_sets(name: str, build: Artifact) -> list[Json]:
    return [
        {
            "@type": "cr:FileSet",
            "@id": f"{name}-{split}-shards",
            "name": f"{name}-{split}-shards",
            "encodingFormat": _TYPES[".parquet"],
            "includes": f"build/{name}/{split}/*.parquet",
        }
        for split in _parquet_splits(build)
    ]


def _record_sets(name: str, build: Artifact) -> list[Json]:
    """Sequences of ids; where a row is one document, its id too."""
    columns = [("input_ids", "sc:Integer", True)]
    if (build.manifest.config.get("pack") or {}).get("layout") == "indexed":
        columns.append(("doc_id", "sc:Text", False))
    more = COLUMNS[build.manifest.config.get("columns", "ids")]
    columns += [(column, "sc:Integer", True) for column, _ in more]
    return [
        {
            "@type": "cr:RecordSet",
            "@id": f"{name}-{split}",
            "name": f"{name}-{split}",
            "field": [
                {
                    "@type": "cr:Field",
                    "@id": f"{name}-{split}/{column}",
                    "name": column,
                    "dataType": kind,
                    **({"repeated": True} if is_list else {}),
                    "source": {
                        "fileSet": {"@id": f"{name}-{split}-shards"},
                        "extract": {"column": column},
                    },
                }
                for column, kind, is_list in columns
            ],
        }
        for split in _parquet_splits(build)
    ]
