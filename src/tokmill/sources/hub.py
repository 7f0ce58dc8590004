"""Datasets on the Hugging Face hub: a pinned commit, and the files of one config and split.

branch, tag or nothing ─ resolve_revision ─> 40 hex digits ─ list_data_files ─> HubFile, HubFile, …
list_configs            configs by whole tags of language and script
configs_of_language     fr, fra or fr-CA ─> fra_Latn: ISO 639-1 as ISO 639-3, and the main form of a language

Which files belong to a config and a split is decided by `datasets` itself, at that commit. Its answer is then
checked: each file must lie in the repository and have a format that we read. A dataset that comes with its
own loading script is refused. Bytes, retries and errors are in `tokmill.sources.hubfile`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, cast

from tokmill.errors import InputError, StorageError, plural
from tokmill.sources.hubfile import (
    LOG,
    TIMEOUT_SECONDS,
    HubFile,
    dataset_url,
    hub_client,
    missing_package,
    patiently,
)
from tokmill.storage import codecs

LONG_CODES = dict(
    pair.split(":")
    for pair in [
        "af:afr",
        "am:amh",
        "ar:ara/arb",
        "as:asm",
        "az:aze/azj",
        "ba:bak",
        "be:bel",
        "bg:bul",
        "bn:ben",
        "bo:bod",
        "br:bre",
        "bs:bos",
        "ca:cat",
        "co:cos",
        "cs:ces",
        "cv:chv",
        "cy:cym",
        "da:dan",
        "de:deu",
        "dv:div",
        "el:ell",
        "en:eng",
        "eo:epo",
        "es:spa",
        "et:est/ekk",
        "eu:eus",
        "fa:fas/pes",
        "fi:fin",
        "fo:fao",
        "fr:fra",
        "fy:fry",
        "ga:gle",
        "gd:gla",
        "gl:glg",
        "gn:grn/gug",
        "gu:guj",
        "gv:glv",
        "ha:hau",
        "he:heb",
        "hi:hin",
        "hr:hrv",
        "ht:hat",
        "hu:hun",
        "hy:hye",
        "ia:ina",
        "id:ind",
        "ig:ibo",
        "is:isl",
        "it:ita",
        "ja:jpn",
        "jv:jav",
        "ka:kat",
        "kk:kaz",
        "km:khm",
        "kn:kan",
        "ko:kor",
        "ku:kur/kmr",
        "kv:kpv",
        "kw:cor",
        "ky:kir",
        "la:lat",
        "lb:ltz",
        "li:lim",
        "lo:lao",
        "lt:lit",
        "lv:lav/lvs",
        "mg:mlg/plt",
        "mi:mri",
        "mk:mkd",
        "ml:mal",
        "mn:mon/khk",
        "mr:mar",
        "ms:msa/zsm",
        "mt:mlt",
        "my:mya",
        "nb:nob",
        "ne:nep/npi",
        "nl:nld",
        "nn:nno",
        "no:nor/nob",
        "oc:oci",
        "om:orm/gaz",
        "or:ori/ory",
        "os:oss",
        "pa:pan",
        "pl:pol",
        "ps:pus/pbt",
        "pt:por",
        "qu:que/quy",
        "rm:roh",
        "ro:ron",
        "ru:rus",
        "rw:kin",
        "sa:san",
        "sc:srd",
        "sd:snd",
        "se:sme",
        "si:sin",
        "sk:slk",
        "sl:slv",
        "sn:sna",
        "so:som",
        "sq:sqi/als",
        "sr:srp",
        "st:sot",
        "su:sun",
        "sv:swe",
        "sw:swa/swh",
        "ta:tam",
        "te:tel",
        "tg:tgk",
        "th:tha",
        "tk:tuk",
        "tl:tgl",
        "tr:tur",
        "tt:tat",
        "ug:uig",
        "uk:ukr",
        "ur:urd",
        "uz:uzb/uzn",
        "vi:vie",
        "vo:vol",
        "wa:wln",
        "wo:wol",
        "xh:xho",
        "yi:yid/ydd",
        "yo:yor",
        "za:zha",
        "zh:zho/cmn",
        "zu:zul",
    ]
)


T = TypeVar("T")

SUBSTRING_WARNING = (
    "--contains compares letters, not languages: `eng` is also in `asm_Beng`, which is Assamese in Bengali "
    "script. Use --lang and --script to match whole tags."
)

_PIN = re.compile(r"[0-9a-f]{40}")
_DATASET = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_TAG_BORDER = re.compile(r"[_.-]")
_PATHS_AT_ONCE = 500
_CARDS = ("README.md", ".huggingface.yaml")  # where a repository declares its configs


def is_pinned(revision: str | None) -> bool:
    return revision is not None and _PIN.fullmatch(revision) is not None


def list_configs(
    dataset: str,
    *,
    lang: str | None = None,
    script: str | None = None,
    contains: str | None = None,
    revision: str | None = None,
) -> list[str]:
    """Config names, sorted. `lang` and `script` match whole tags:
    `eng` is in eng_Latn and not in asm_Beng."""
    languages, scripts = (
        {_tag(kind, tag)} if tag else set() for kind, tag in (("lang", lang), ("script", script))
    )
    if contains is not None:
        LOG.warning(SUBSTRING_WARNING)
    sha = resolve_revision(dataset, revision)
    names, dataset = _ask(
        dataset, sha, lambda client, scratch, name: _config_names(client, scratch, name, sha)
    )
    tags = {name: _tags(name) for name in names}
    matching = [
        name
        for name in names
        if languages <= tags[name][0] and scripts <= tags[name][1] and (contains is None or contains in name)
    ]
    if not matching:
        is_script = any(languages & own for _, own in tags.values())
        why = f": {lang} is a script, and no language" if is_script else ""
        raise InputError(
            f"none of {plural(len(names), 'config')} matches{why}",
            where=dataset_url(dataset, sha),
            next=f"choose among {_some(names)}"
            + (f"; `--script {str(lang).capitalize()}` finds those in that script" if is_script else ""),
        )
    return matching


def _tags(config: str) -> tuple[set[str], set[str]]:
    """Tags of languages and of scripts: of asm_Beng asm, and beng. A script has four letters and follows."""
    first, *others = (part.lower() for part in _TAG_BORDER.split(config))
    scripts = {part for part in others if len(part) == 4 and part.isalpha()}
    return {first, *others} - scripts, scripts


def configs_of_language(names: list[str], language: str) -> list[str]:
    """Configs that are called after a language and a script (fra_Latn), of this language (fr, fra, fr-CA)."""
    code = language.lower().partition("-")[0].partition("_")[0]
    tags = {code, *LONG_CODES.get(code, "").split("/")}
    split = {name: _TAG_BORDER.split(name) for name in names}
    return [name for name, parts in split.items() if len(parts) == 2 and parts[0].lower() in tags]


def resolve_revision(dataset: str, revision: str | None) -> str:
    """The commit that a branch, a tag or nothing (the main branch) stands for now; a commit must exist."""
    _check_name(dataset)
    is_pin = revision is not None and _PIN.fullmatch(revision) is not None
    sha = str(_info(dataset, revision).sha)
    if not _PIN.fullmatch(sha) or (is_pin and sha != revision):
        raise InputError(
            f"the hub answers with commit {sha}",
            where=dataset_url(dataset, revision),
            next="check the revision",
        )
    return sha


def list_data_files(
    dataset: str,
    config: str | None,
    split: str,
    revision: str,
    choose: Callable[[list[str]], str | None] = lambda names: None,
) -> list[HubFile]:
    """The files of a split of a config at a commit, by path. No config:
    the only one, or the dataset's default, or the one that `choose` takes of all.

    `train+validation`, as `datasets` spells it: all of the first, then all of the second.
    """
    _check_name(dataset)
    if not _PIN.fullmatch(revision):
        raise InputError(
            f"{revision!r} is not a commit",
            where=dataset_url(dataset, None),
            next="resolve the revision first",
        )
    found, dataset = _ask(
        dataset, revision, lambda client, scratch, name: _splits(client, scratch, name, config, revision)
    )
    where = dataset_url(dataset, revision)
    if isinstance(found, list) and config is None and (chosen := choose(found)) is not None:
        return list_data_files(dataset, chosen, split, revision)
    if isinstance(found, list):
        problem = "several configs, and none is the default" if config is None else f"no config `{config}`"
        raise InputError(problem, where=where, next=f"choose among {_some(found)}")
    paths: list[str] = []
    for name in split.split("+"):
        name = name.strip()
        if name not in found:
            raise InputError(
                f"no split `{name}`",
                where=where,
                next=f"choose among {_some(sorted(found))}; several are joined by +",
            )
        own = sorted({_path_inside(url, where) for url in found[name]})
        twice = next((path for path in own if path in paths), None)
        if twice is not None:
            raise InputError(
                f"`{split}` has {twice} twice", where=where, next="name each split once, of those that differ"
            )
        paths += own
    files = _describe(dataset, revision, paths)
    for file in files:
        if not file.name.endswith(codecs.SUFFIXES):
            raise codecs.unknown_suffix(cast(Path, file))
    return files


# What the client is asked
# ------------------------------------------------------------------------------------------


def _info(dataset: str, revision: str | None) -> Any:
    hub = hub_client()
    where = dataset_url(dataset, revision)
    return patiently(
        lambda: hub.HfApi().dataset_info(dataset, revision=revision, timeout=TIMEOUT_SECONDS), where
    )


def _ask(dataset: str, revision: str, question: Callable[[Any, str, str], T]) -> tuple[T, str]:
    """Put a question to `datasets`, once it is certain that it will run no code and see all that is declared.
    Returns the answer, and the name that the hub has for the dataset now: wmt/wmt14 of wmt14.

    A card that cannot be fetched is for `datasets` a card that is not there, and other files would be read;
    so cards are fetched here first. The scratch directory keeps it from answering with what was once cached.
    """
    hub, client, info = hub_client(), _datasets(), _info(dataset, revision)
    if info.id and info.id != dataset:
        LOG.warning(f"{dataset} is {info.id} on the hub")
        dataset = str(info.id)
    where = dataset_url(dataset, revision)
    siblings = {sibling.rfilename for sibling in info.siblings or []}
    script = f"{PurePosixPath(dataset).name}.py"
    if script in siblings:
        raise InputError(
            f"the dataset is loaded by its own script {script}; code from the hub is never run",
            where=where,
            next=(
                "use a revision or a copy of it that holds data files (many have a branch "
                "refs/convert/parquet)"
            ),
        )
    for card in _CARDS:
        if card in siblings:
            fetch = partial(hub.hf_hub_download, dataset, card, repo_type="dataset", revision=revision)
            patiently(fetch, where)
    with tempfile.TemporaryDirectory(prefix="tokmill-hub-") as scratch:
        return patiently(lambda: question(client, scratch, dataset), where), dataset


def _config_names(client: Any, scratch: str, dataset: str, revision: str) -> list[str]:
    names = client.get_dataset_config_names(_remote(dataset), revision=revision, cache_dir=scratch)
    return sorted(map(str, names))


def _splits(
    client: Any, scratch: str, dataset: str, config: str | None, revision: str
) -> dict[str, list[str]] | list[str]:
    """Addresses by split; or, where there is no such config, the names of those that there are."""
    try:
        builder = client.load_dataset_builder(_remote(dataset), config, revision=revision, cache_dir=scratch)
    except ValueError:
        names = _config_names(client, scratch, dataset, revision)
        if config in names or (config is None and len(names) == 1):
            raise
        return names
    return {
        str(split): [str(url) for url in urls] for split, urls in (builder.config.data_files or {}).items()
    }


def _describe(dataset: str, revision: str, paths: list[str]) -> list[HubFile]:
    hub, where = hub_client(), dataset_url(dataset, revision)
    known: dict[str, Any] = {}
    for first in range(0, len(paths), _PATHS_AT_ONCE):
        some = paths[first : first + _PATHS_AT_ONCE]
        ask = partial(hub.HfApi().get_paths_info, dataset, some, repo_type="dataset", revision=revision)
        known.update({entry.path: entry for entry in patiently(ask, where)})
    absent = [path for path in paths if getattr(known.get(path), "blob_id", None) is None]
    if absent:
        raise StorageError(
            f"the hub lists {absent[0]} and does not describe it", where=where, next="run again"
        )
    return [
        HubFile(
            dataset=dataset,
            revision=revision,
            path=path,
            size=int(known[path].size),
            oid=str(known[path].blob_id),
            sha256=known[path].lfs.sha256 if known[path].lfs else None,
        )
        for path in paths
    ]


def _path_inside(url: str, where: str) -> str:
    """A card may name a file of another repository, of another host or of this machine; none is pinned."""
    if not url.startswith(f"{where}/"):
        raise InputError(
            f"the dataset's card points outside its repository: {url}",
            where=where,
            next="name the dataset that holds the file, or download it and read it as a local file",
        )
    return url.removeprefix(f"{where}/")


# Names
# --------------------------------------------------------------------------------------------------


def _remote(dataset: str) -> str:
    """So spelled, it is never a directory that happens to have the same name."""
    return f"hf://datasets/{dataset}"


def _check_name(dataset: str) -> None:
    if not _DATASET.fullmatch(dataset):
        raise InputError(
            f"{dataset!r} is not the name of a dataset on the hub",
            next="give owner/name, as in HuggingFaceFW/fineweb-2",
        )


def _tag(kind: str, tag: str) -> str:
    if not tag.isalpha() or (kind == "script" and len(tag) != 4):
        raise InputError(
            f"{tag!r} is not a {'script' if kind == 'script' else 'language'} tag",
            next="a language is a code like `en` or `eng`, a script one like `Latn`; for eng_Latn give both",
        )
    return tag.lower()


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown}, … ({len(names):,})" if len(names) > 20 else shown or "nothing: it is empty"


def _datasets() -> Any:
    try:
        import datasets  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise missing_package("datasets") from error
    return datasets
