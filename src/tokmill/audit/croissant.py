"""croissant.json: the builds of a run as a Croissant 1.0 dataset (schema.org, with the files and their sha256).

    name, description, licences, languages   from the facts of the report
    distribution                             every file of every build, by its place in the run
    record sets                              for Parquet builds, which others can read by column

What nobody measured is not said: who publishes the dataset adds `url`, `creator`, `citeAs` and `datePublished`.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from tokmill.artifact import Artifact
from tokmill.audit.report.found import Found
from tokmill.audit.report.tally import UNKNOWN
from tokmill.clean.license_names import find_license
from tokmill.manifest import FileEntry, Json

CROISSANT = "croissant.json"
_SPDX = "https://spdx.org/licenses/"
_TYPES = {
    ".parquet": "application/x-parquet",  # as the specification and mlcroissant call it
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".zst": "application/zstd",
    ".npy": "application/x-npy",
}

# The context of the specification, https://docs.mlcommons.org/croissant/docs/croissant-spec.html
_CONTEXT: Json = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def describe_croissant(found: Found, facts: Json, description: str) -> Json:
    builds = found.of_kind("build")
    licenses = known_names(facts, "license")
    languages = known_names(facts, "language")
    return {
        "@context": _CONTEXT,
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
    """Licences or languages of what was encoded, or else of what was cleaned; the most first, unknown never."""
    if facts["shares"] is not None:
        return [row["name"] for row in facts["shares"][key] if row["name"] != UNKNOWN]
    totals: dict[str, int] = {}
    for source in facts["sources"]:
        for name, total in (source[f"{key}s"] or {}).items():
            totals[name] = totals.get(name, 0) + total["docs"]
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
