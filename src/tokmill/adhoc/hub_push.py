"""A directory of texts as a dataset of the hub, by the hub's own client.

    create_repo (exists: fine) ─ upload_folder: README.md, manifest.json, <split>/texts-* ─> a commit
                                 files of an earlier upload that are no more: removed in the same commit

The token is that of HF_TOKEN, and of nothing else: no login that lies on this machine is used. It is in no
message.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.artifacts.manifest import MANIFEST, Manifest
from tokmill.errors import InputError
from tokmill.sources.hubfile import dataset_url, hub_client, patiently

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


class Pushed(NamedTuple):
    dataset: str
    revision: str  # the commit
    url: str


def check_target(dataset: str) -> None:
    """Before anything is made that could not be pushed."""
    if not _NAME.fullmatch(dataset):
        raise InputError(f"{dataset!r} is no name of a dataset", where="--push", next="give it as OWNER/NAME")
    hub_client()
    if not os.environ.get("HF_TOKEN"):
        raise InputError(
            "no token to push with",
            where=dataset_url(dataset, None),
            next="set HF_TOKEN to a token that may write there",
        )


def push_dataset(directory: Path, manifest: Manifest, dataset: str) -> Pushed:
    """All files of the manifest, in one commit, or in several where the client divides it."""
    client = hub_client()
    api, where = client.HfApi(token=os.environ["HF_TOKEN"]), dataset_url(dataset, None)
    client.utils.disable_progress_bars()

    def push() -> Any:
        try:
            api.create_repo(dataset, repo_type="dataset", exist_ok=True)
            return api.upload_folder(
                repo_id=dataset,
                repo_type="dataset",
                folder_path=directory,
                allow_patterns=[*_patterns(manifest), MANIFEST],
                delete_patterns=["*/texts-*"],
                commit_message=f"Texts of {manifest.config['title']}",
                commit_description=f"corpus digest {manifest.facts['corpus_digest']}",
            )
        except client.errors.HfHubHTTPError as error:
            status = getattr(error.response, "status_code", None)
            refusal = _refused(status, where)
        if refusal is not None:
            raise refusal  # outside of the handler: without the client's error, which may quote a request
        raise ConnectionError(f"the hub answers with an error ({status})")

    commit = patiently(push, where)
    return Pushed(dataset, str(commit.oid), str(commit.repo_url))


def _patterns(manifest: Manifest) -> list[str]:
    """Few, however many files there are: each is asked of every file."""
    texts = {f"{Path(e.path).parent}/texts-*" for e in manifest.entries("texts")}
    return [*sorted(texts), *(e.path for e in manifest.entries("card"))]


def _refused(status: int | None, where: str) -> InputError | None:
    if status in (401, 403):
        return InputError(
            f"the hub refuses to be written to ({status})",
            where=where,
            next="check that HF_TOKEN is valid, and may write to datasets of this owner",
        )
    if status in (400, 404, 409, 413, 422):
        return InputError(
            f"the hub does not take the dataset ({status})",
            where=where,
            next="check the owner and the name, and what is there already",
        )
    return None
