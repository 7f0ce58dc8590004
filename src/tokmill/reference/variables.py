"""Variables of the environment that change what a command does, none of them a byte of its result.

VARIABLES ─> reference/environment.md
"""

from __future__ import annotations

from tokmill.reference.markup import code, page, table, text

PATH = "reference/environment.md"

VARIABLES = {
    "TOKMILL_WORKERS": (
        "processes of every verb that has `--workers`, where that is not given [default: the cores available]"
    ),
    "TOKMILL_WORKER_MEGABYTES": (
        "a run has a worker for each so many megabytes of input, and no more than `--workers` [default: 4]; "
        "0: as many as there are tasks for"
    ),
    "TOKMILL_NODE_CACHE": (
        "of a node that shares no disk with the driver: the directory for files of its tasks [default: "
        "`tokmill-node-…` below `TMPDIR`]"
    ),
    "TOKMILL_NODE_CACHE_GIGABYTES": "how much of them is kept there [default: 32 GiB]",
    "_TOKMILL_COMPLETE": (
        "`bash_source`, `zsh_source` or `fish_source`: `tokmill` prints the completion of that shell"
    ),
    "TMPDIR": "where temporary files go: what comes in by a pipe, samples of a tokenizer's training",
    "XDG_CACHE_HOME": (
        "its `tokmill/` is where a run that is published to a URL works, without `--work`, and where the "
        "explorer keeps indexes of texts [default: `~/.cache`]"
    ),
    "HF_TOKEN": "the token of the hub: for what is not public, and for `export --push`, which uses no other",
    "AWS_ENDPOINT_URL": (
        "another object store that speaks S3; credentials and profiles are read as every AWS client reads "
        "them"
    ),
    "AWS_ENDPOINT_URL_S3": "likewise, before the other",
}


def pages() -> dict[str, str]:
    rows = ((code(name), text(told)) for name, told in VARIABLES.items())
    return {
        PATH: page(
            "# Environment",
            "",
            "Variables that tokmill reads. An option of the command line goes before its variable, and no "
            "variable changes a byte of a result. Packages beneath have their own: `HF_HOME` "
            "of the hub, `NUMBA_CACHE_DIR` of the compiled kernels, `NO_COLOR` and `COLUMNS` of what is "
            "printed, `SLURM_CONF` of the cluster that jobs are submitted to.",
            table(("variable", "what"), rows),
        )
    }
