"""Mistakes in the files of a source, and in what is said of their fields."""

from __future__ import annotations

import gzip
import os

from pipeline.mistaken import CHECK, NOTES, WEB, edit, jsonl

FILES = {
    "a directory that is not there": edit(
        WEB, "files: wb/*.jsonl", "line 7: sources[0].files", "matches no file", "no directory wb/"
    ),
    "a pattern that matches nothing": edit(
        WEB, "files: web/*.jsonll", "line 7: sources[0].files", "web/*.jsonll: the pattern", "a.jsonl"
    ),
    "a file that is not there": edit(
        NOTES, "files: nots.txt", "line 10: sources[1].files", "nots.txt: the pattern matches no file"
    ),
    "one pattern of two": edit(
        NOTES, "files: [notes.txt, nots.txt]", "line 10: sources[1].files[1]", "nots.txt: the pattern"
    ),
    "a directory for a file": edit(
        WEB,
        "files: web",
        "line 7: sources[0].files",
        "web: matches no file: it is a directory",
        "document: `directory: {path: web}` instead of `files`",
    ),
    "a directory with a slash": edit(
        WEB,
        "files: web/",
        "line 7: sources[0].files",
        "web/: matches no file: it is a directory",
        "`files: web/*.jsonl`",
    ),
    "a shard of many that is missing": edit(
        WEB, 'files: "web/{00..02}.jsonl"', "line 7: sources[0].files", "web/00.jsonl: the pattern"
    ),
    "numbers that run backwards": edit(
        WEB, "files: 'a-{5..1}.jsonl'", "line 7: sources[0].files", "`{5..1}` is 0 numbers", "smaller to the"
    ),
    "more numbers than anyone has": edit(
        WEB,
        "files: 'a-{0..999999999}.jsonl'",
        "line 7: sources[0].files",
        "`{0..999999999}` is 1,000,000,000 numbers",
        "100,000 at most",
    ),
    "a tar archive without its section": edit(
        WEB,
        "files: x.tar.gz",
        "x.tar.gz: is a tar archive, by its name",
        "`webdataset: {}`",
        **{"x.tar.gz": b"x"},
    ),
    "a tar archive of another end": edit(
        WEB,
        "files: x.tgz",
        "line 7: sources[0].files",
        "x.tgz: is a tar archive, by its name",
        "name it `x.tar.gz`",
        **{"x.tgz": b"x"},
    ),
    "pages of a source that has none": edit(
        WEB, f"{WEB}\n    extract: {{}}", "line 8: sources[0].extract", "is for web pages", CHECK
    ),
    "Markdown of an engine that writes none": edit(
        WEB,
        "files: x.warc\n    warc: {}\n    extract: {engine: resiliparse, markup: markdown}",
        "line 9: sources[0].extract.markup",
        "`resiliparse` writes plain text; `tokmill` and `trafilatura` write Markdown",
        CHECK,
        **{"x.warc": b"x"},
    ),
    "links in plain text": edit(
        WEB,
        "files: x.warc\n    warc: {}\n    extract: {links: true}",
        "line 9: sources[0].extract.links",
        "are for `markup: markdown`",
        CHECK,
        **{"x.warc": b"x"},
    ),
    "comments of an engine that cannot be asked for them": edit(
        WEB,
        "files: x.warc\n    warc: {}\n    extract: {engine: resiliparse, comments: true}",
        "line 9: sources[0].extract.comments",
        "`resiliparse` keeps what it takes for text; the other two can be asked",
        CHECK,
        **{"x.warc": b"x"},
    ),
    "a web archive without its section": edit(
        WEB,
        "files: x.warc.gz",
        "x.warc.gz: is a web archive, by its name",
        "`warc: {}`",
        **{"x.warc.gz": b"x"},
    ),
    "a dump without its section": edit(
        WEB,
        "files: x.7z",
        "line 7: sources[0].files",
        "x.7z: is a dump of Stack Exchange",
        "`stackexchange: {}`",
        **{"x.7z": b"x"},
    ),
    "XML without a section": edit(
        WEB,
        "files: x.xml.bz2",
        "line 7: sources[0].files",
        "x.xml.bz2: is XML, by its name",
        "`wikipedia: {}`",
        **{"x.xml.bz2": b"x"},
    ),
    "source code as records": edit(
        WEB,
        "files: x.py",
        "line 7: sources[0].files",
        "x.py: .py files are not records",
        "suffixes: [.py]}`",
        **{"x.py": b"x"},
    ),
    "a tar archive with another name": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "x.jsonl: is a tar archive, and its name does not say so",
        "give its name the end .tar, and say so: `webdataset: {}` in this source",
        **jsonl(b"a.txt".ljust(257, b"\0") + b"ustar\x0000".ljust(300, b"\0")),
    ),
    "an empty file": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "x.jsonl: the file is empty",
        "copied whole",
        **jsonl(b""),
    ),
    "a binary file": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "has no JSON object on any of its first lines",
        "convert the file",
        **jsonl(bytes(range(256)) * 40),
    ),
    "a JSON array": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "holds a JSON array, and should hold an object on each line",
        "name it x.json",
        **jsonl(b'[{"text": "a"}]\n'),
    ),
    "gzip without its suffix": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "is compressed with gzip, and its name does not say so",
        "name it x.jsonl.gz",
        **jsonl(gzip.compress(b'{"text": "a"}\n')),
    ),
    "zstd in gzip's name": edit(
        WEB,
        "files: x.jsonl.gz",
        "line 7: sources[0].files",
        "is compressed with zstd, and its name says something else",
        "name it x.jsonl.zst",
        **jsonl(b"\x28\xb5\x2f\xfd" + bytes(90), "x.jsonl.gz"),
    ),
    "Parquet in JSON's name": edit(
        WEB,
        "files: x.json",
        "line 7: sources[0].files",
        "is a Parquet file, and its name does not say so",
        "name it x.parquet",
        **jsonl(b"PAR1" + bytes(90), "x.json"),
    ),
    "Arrow in Parquet's name": edit(
        WEB,
        "files: x.parquet",
        "line 7: sources[0].files",
        "is an Arrow file, and its name says something else",
        "name it x.arrow",
        **jsonl(b"ARROW1" + bytes(90), "x.parquet"),
    ),
    "a page in CSV's name": edit(
        WEB,
        "files: x.csv",
        "line 7: sources[0].files",
        "is an HTML page",
        "download the file again",
        **jsonl(b"\n<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n", "x.csv"),
    ),
    "JSON lines in CSV's name": edit(
        WEB,
        "files: x.csv.gz",
        "line 7: sources[0].files",
        "holds JSON lines, and its name does not say so",
        "name it x.jsonl",
        **jsonl(gzip.compress(b'{"text": "a"}\n'), "x.csv.gz"),
    ),
    "one JSON object over several lines": edit(
        WEB,
        "files: x.json",
        "line 7: sources[0].files",
        "holds one JSON object over several lines",
        "jq -c '.KEY[]' FILE",
        **jsonl(b'{\n "data": [\n  {"text": "a"},\n  {"text": "b"}\n ]\n}\n', "x.json"),
    ),
    "a ZIP archive": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "is a ZIP archive",
        "unpack it",
        **jsonl(b"PK\x03\x04" + bytes(90)),
    ),
    "no gzip": edit(
        WEB,
        "files: x.jsonl.gz",
        "line 7: sources[0].files",
        "is not compressed with gzip, and its name says so",
        "name it x.jsonl",
        **jsonl(b'{"text": "a"}\n', "x.jsonl.gz"),
    ),
    "gzip that is cut": edit(
        WEB,
        "files: x.jsonl.gz",
        "line 7: sources[0].files",
        "truncated",
        "copy or download it again",
        **jsonl(gzip.compress(os.urandom(900))[:500], "x.jsonl.gz"),
    ),
    "no zstd": edit(
        WEB,
        "files: x.jsonl.zst",
        "line 7: sources[0].files",
        "is not compressed with zstd, and its name says so",
        "name it x.jsonl",
        **jsonl(b'{"text": "a"}\n', "x.jsonl.zst"),
    ),
    "no Parquet": edit(
        WEB,
        "files: x.parquet",
        "line 7: sources[0].files",
        "x.parquet",
        "copy",
        **jsonl(b'{"text": "a"}\n', "x.parquet"),
    ),
    "UTF-16": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "is text in UTF-16",
        "convert it to UTF-8",
        **jsonl('{"text": "a"}\n'.encode("utf-16")),
    ),
    "Latin-1": edit(
        NOTES + "\n    unit: paragraph",
        "files: x.txt",
        "line 10: sources[1].files",
        "is not UTF-8 (byte 3:",
        "convert the file",
        **jsonl("café au lait".encode("latin-1"), "x.txt"),
    ),
    "an unknown suffix": edit(
        WEB,
        "files: x.xlsx",
        "line 7: sources[0].files",
        "no reader for the suffix .xlsx",
        "known suffixes: .jsonl",
        **jsonl(b"a,b\n", "x.xlsx"),
    ),
    "a text that no record has": edit(
        WEB,
        WEB + "\n    fields: {text: txet}",
        "line 8: sources[0].fields",
        "the first records have no field `txet`; they have id, text",
        "did you mean `text`?",
    ),
    "an id that no record has": edit(
        WEB,
        WEB + "\n    fields: {id: idd}",
        "line 8: sources[0].fields",
        "`fields.id` names the field `idd`",
        "did you mean `id`?",
    ),
    "a template of what no record has": edit(
        WEB,
        WEB + '\n    template: "{question}"',
        "line 8: sources[0].template",
        "the first records have no field `question`",
        "`template` of this source",
    ),
    "benchmarks that are not there": edit(
        "{exact: true}",
        "{exact: true, against: {files: b/*.jsonl, fields: [text]}}",
        "line 15: dedup.against.files",
        "matches no file",
        "no directory b/",
    ),
}
