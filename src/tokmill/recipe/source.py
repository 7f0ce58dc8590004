"""Sections that say where documents come from and how records become documents."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer
from pydantic.json_schema import SkipJsonSchema

from tokmill.recipe.cleaning import Cleaning
from tokmill.recipe.names import SOURCE_FORMATS, template_parts
from tokmill.recipe.section import Name, Path_, Patterns, Section, Share, part_of


class Fields(Section):
    """Which key of a record holds what. Without an entry, each record is asked for `text` or `content`,
    `id` or `doc_id`, `license` or `license_tag`, `created_at`. Its own `meta` object is carried along.
    A path leads into a record: `translation.fr`, `a.b.c`, `messages[0].content`, [-1] for the last."""

    text: str | None = Field(
        None, description="the key of the text; a list of texts is one text, a line for each"
    )
    id: str | None = None
    license: str | None = Field(None, description="the key of the licence; of a list all must be allowed")
    language: str | None = Field(None, description="for `language: {method: field}`")
    created_at: str | None = None
    meta: list[str] = Field(default=[], description="keys to carry along as JSON, in `meta`")


_FIELDS = tuple(Fields.model_fields)
_FIELDS_OF_PAIRS = {("parallel", key) for key in ("id", "license", "created_at", "meta")}


class Wikipedia(Section):
    """WikiExtractor output (--json lines or <doc> blocks) or a MediaWiki XML dump (.xml, .xml.bz2)."""

    namespaces: list[int] = Field([0], description="of a dump; 0 is articles")


class StackExchange(Section):
    """Posts.xml or a .7z that holds it: questions with their answers."""

    answers: Literal["accepted", "best", "all"] = Field(
        "accepted", description="accepted: the accepted answer, else the best; best: by score; all: by score"
    )
    max_answers: int = Field(1, ge=1, description="for best and all")
    min_question_score: int = 0
    min_answer_score: int = 0
    max_expansion: int = Field(100, ge=1, description="an archive that grows more than this is refused")


class Parallel(Section):
    """Sentence pairs, joined for language modelling."""

    source_key: str = "src_text"
    target_key: str = "tgt_text"
    separator: str = "\n"
    min_chars: int = Field(2, ge=1, description="per side")
    max_chars: int = Field(256, ge=1, description="per side")


class Warc(Section):
    """Web archives: .warc[.gz] (main text of HTML pages) and .wet[.gz] (text as extracted)."""

    LATER: ClassVar = ("truncated", "license")

    main_text: bool = Field(True, description="leave out navigation and boilerplate of HTML pages")
    truncated: Literal["error", "quarantine"] = Field(
        "error", description="a file that ends inside a record: an error, or that record is quarantined"
    )
    license: Literal["source", "page"] = Field(
        "source",
        description="of a document: the source's, or its page's own where it names one",
    )


class Extract(Section):
    """The text of web pages: of a `warc`, and of .html files in a `directory`."""

    engine: Literal["tokmill", "resiliparse", "trafilatura"] = Field(
        "tokmill", description="who takes it out; the other two are packages of their own"
    )
    markup: Literal["text", "markdown"] = Field(
        "text", description="plain text, or headings, lists, tables, code and formulas as Markdown"
    )
    links: bool = Field(False, description="addresses of links, in Markdown")
    comments: bool = Field(False, description="what readers wrote below the main text")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if given.get("engine") == "resiliparse" and given.get("markup") == "markdown":
            yield ("markup",), "`resiliparse` writes plain text; `tokmill` and `trafilatura` write Markdown"
        if given.get("links") and given.get("markup", "text") != "markdown":
            yield ("links",), "are for `markup: markdown`"
        if given.get("engine") == "resiliparse" and given.get("comments"):
            yield ("comments",), "`resiliparse` keeps what it takes for text; the other two can be asked"


class Pdf(Section):
    """PDF files, by their text layer; scans have none, and are quarantined."""

    unit: Literal["document", "page"] = Field("document", description="what a document is: a file, or a page")
    max_seconds: int = Field(
        60, ge=1, description="of a processor, for one file; one that takes longer is quarantined"
    )


class Mbox(Section):
    """Mail folders, .mbox and compressed: each message is a document."""

    headers: list[Annotated[str, Field(pattern=r"^[!-9;-~]+$")]] = Field(
        ["subject", "list-id", "in-reply-to"],
        description="what is kept of them in `meta`; `from`, `to` and `cc` are addresses of people",
    )


class Directory(Section):
    """A directory of this machine, one document per file; its id is the path below the directory."""

    path: str = Field(description="relative to the recipe")
    suffixes: list[Annotated[str, Field(pattern=r"^\.[^/]+$")]] = Field(
        [".txt", ".md", ".py", ".rst", ".tex", ".html", ".ipynb"],
        min_length=1,
        description="which files are read, as their names are spelled",
    )
    gitignore: bool = Field(True, description="leave out what `.gitignore` files in the directory name")


class Webdataset(Section):
    """Tar archives of WebDataset: members `KEY.txt`, `KEY.json`, … one after the other are a sample."""

    text: str = Field(
        "txt",
        pattern=r"^[^./][^/]*$",
        description="the end of the member that is the text; json.KEY: a field of the .json member",
    )
    meta: str | None = Field(
        "json",
        pattern=r"^[^./][^/]*$",
        description="the end of the member whose JSON object is carried along; null: none",
    )


class ChatNames(Section):
    """What a message calls its role and its text; ShareGPT: {role: from, content: value}."""

    role: str = Field("role", description="the key of who speaks")
    content: str = Field("content", description="the key of what is said: a text, or a list of parts of text")


class Chat(Section):
    """Records are conversations: a list of messages, rendered by the template of a model, and a mask that
    says which tokens are learned."""

    messages: str = Field("messages", description="the key of the list of messages")
    names: ChatNames = Field(ChatNames(), description="what a message calls its role and its text")
    roles: dict[str, Literal["system", "user", "assistant", "tool"]] = Field(
        {}, description="other names of roles; `human` is user and `gpt` is assistant already"
    )
    tools: str | None = Field(None, description="the key of the list of tools, which the template is given")
    template: str = Field(
        "chatml",
        description=(
            "`chatml`, or the path of a tokenizer_config.json, a chat_template.jinja, or the directory of a "
            "tokenizer"
        ),
    )
    loss: Literal["assistant", "all"] = Field(
        "assistant", description="what is learned: the answers and what ends them, or every token"
    )


HUB_NAME = r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$"


class Hub(Section):
    """A dataset of the Hugging Face hub. A branch is resolved to its commit once, and stays there."""

    dataset: str = Field(pattern=HUB_NAME)
    config: str | None = None
    split: str = Field("train", description="of the dataset; train+validation: one after the other")
    revision: str | None = Field(None, description="40 hex digits pin it; a branch or tag is resolved once")


class Corpus(Section):
    """Shards listed in a manifest of `tokmill materialize` or `tokmill select`; each must have its sha256."""

    manifest: str
    root: str | None = Field(
        None, description="the directory that holds corpora/ [default: where manifests/ lies]"
    )


class Limit(Section):
    """As many documents as stay within all bounds that are given, in the source's order."""

    docs: int | None = Field(None, ge=1)
    chars: int | None = Field(None, ge=1)
    megabytes: int | None = Field(None, ge=1, description="millions of bytes of text")
    tokens: int | None = Field(None, ge=1, description="estimated: four characters each")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if not any(given.get(key) is not None for key in ("docs", "chars", "megabytes", "tokens")):
            yield (), "needs `docs`, `chars`, `megabytes` or `tokens`"


class Sample(Section):
    """Which documents are taken. Only `head` and `shuffle_buffer` leave the rest of the source unread.
    `reservoir` and `weighted` take all documents of one id and text or none of them, and `hash` all of one
    id: a sample does not tell how many copies the source has."""

    LATER: ClassVar = ("distinct",)

    method: Literal["reservoir", "weighted", "hash", "head", "shuffle_buffer"]
    k: int | None = Field(None, ge=1, description="documents; for all methods but hash")
    buffer: int | None = Field(None, ge=1, description="documents in the buffer, for shuffle_buffer")
    fraction: Share | None = Field(None, description="for hash")
    weight: str | None = Field(None, description="for weighted: a key of `fields.meta` that holds a number")
    distinct: bool = Field(
        False,
        description=(
            "for reservoir and weighted: draw one of the documents whose texts differ in nothing but case, "
            "compatible characters and whitespace, so that `dedup: {exact: true}` leaves all `k`"
        ),
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        method = given.get("method")
        if given.get("distinct") and method not in (None, "reservoir", "weighted"):
            yield ("distinct",), f"is for reservoir and weighted, not for {method}"
        needed = {"hash": "fraction"}.get(str(method), "k")
        if method is not None and given.get(needed) is None:
            yield (needed,), f"{method} needs `{needed}`"
        for name, key in (("weighted", "weight"), ("shuffle_buffer", "buffer")):
            if method == name and given.get(key) is None:
                yield (key,), f"{name} needs `{key}`"


# What a written recipe says where records were given in Python.
IN_PYTHON = "in Python"


class Source(Section):
    LATER: ClassVar = ("chat", "extract", "pdf", "mbox", "directory", "webdataset")

    name: Name
    domain: Name = "default"
    license: str | None = Field(None, description="for documents that carry none of their own")
    files: Patterns | None = Field(
        None,
        description=(
            "glob or list of globs; .jsonl .json .csv .tsv .txt [.gz|.zst|.bz2|.xz|.lz4] .parquet .arrow "
            ".feather, or a directory of `save_to_disk`"
        ),
    )
    hub: Hub | None = None
    corpus: Corpus | None = None
    data: SkipJsonSchema[Any] = Field(
        None,
        exclude=True,
        repr=False,
        description="in Python: the records themselves; their content is their identity",
    )
    reader: str | None = Field(
        None,
        description=(
            "a function that reads a file: of an installed package, or hooks.py:name; its records are then "
            "read as those of JSON Lines are"
        ),
    )
    options: dict[str, Any] = Field({}, description="for the `reader`")
    where: dict[str, str] = Field(
        {}, description="keep records whose field has this value; a field that no record has is an error"
    )
    fields: Fields = Fields()
    template: str | None = Field(
        None,
        description=('builds the text: "Problem: {question}\\n\\nSolution: {answer}"; fields may be paths'),
    )
    chat: Chat | None = Field(
        None, description="records are conversations; a template renders them, and answers are learned"
    )
    unit: Literal["document", "paragraph", "line"] = Field(
        "document", description="what a document is in .txt files"
    )
    on_bad_record: Literal["quarantine", "fail"] = "quarantine"
    max_bad_fraction: Share = Field(Decimal("0.01"), description="more than this stops the run")
    max_record_bytes: int = Field(128 << 20, ge=1024)
    limit: Limit | None = None
    sample: Sample | None = None
    clean: Cleaning | None = Field(None, description="filters and the like for this source alone")
    fallback: Name | None = Field(
        None, description="a source to read only if this one does not reach its limit"
    )
    extract: Extract | None = Field(
        None,
        description="how web pages become text; a `directory` without it has all of a page's text",
    )
    wikipedia: Wikipedia | None = None
    stackexchange: StackExchange | None = None
    parallel: Parallel | None = None
    warc: Warc | None = None
    pdf: Pdf | None = None
    mbox: Mbox | None = None
    directory: Directory | None = None
    webdataset: Webdataset | None = None

    @property
    def format(self) -> str:
        """The reader that the source's section chooses; files of records and plain text without one."""
        chosen = (name for name in SOURCE_FORMATS if getattr(self, name) is not None)
        return self.reader or next(chosen, "records")

    @model_serializer(mode="wrap")
    def _dumped(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = self._without_unset(dump(self))
        return content if self.data is None else {**content, "data": IN_PYTHON}

    @field_validator("template")
    @classmethod
    def _plain_fields(cls, value: str | None) -> str | None:
        if value is not None:
            template_parts(value)
        return value

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if given.get("template") is not None and part_of(given.get("fields"), "text") is not None:
            yield ("template",), "`template` and `fields.text` both say where the text comes from; keep one"
        if sum(given.get(key) is not None for key in ("files", "hub", "corpus", "data", "directory")) != 1:
            yield (), "needs either `files`, `hub`, `corpus` or `directory`"
        chosen = [name for name in SOURCE_FORMATS if given.get(name) is not None]
        for key in ("hub", "corpus"):
            if given.get(key) is not None and set(chosen) - {"parallel"}:
                yield (chosen[0],), f"reads local files; it cannot be used with `{key}`"
        if given.get("reader") is None and given.get("options"):
            yield ("options",), "are for a `reader`, and there is none"
        elif given.get("reader") is not None:
            for key in ("hub", "corpus", "data", *chosen):
                if given.get(key) is not None:
                    yield ("reader",), f"reads `files`; it cannot be used with `{key}`"
            if given["reader"] in SOURCE_FORMATS:
                yield ("reader",), f"`{given['reader']}` is a section of its own"
        if given.get("where") and chosen:
            yield ("where",), f"is for files of records, not for `{chosen[0]}`"
        for key in _FIELDS if chosen else ():
            if part_of(given.get("fields"), key) and (chosen[0], key) not in _FIELDS_OF_PAIRS:
                yield ("fields", key), f"is for files of records, not for `{chosen[0]}`"
        if len(chosen) > 1:
            yield (chosen[1],), f"`{chosen[0]}` already says what the files are; keep one"
        if given.get("extract") is not None and not {"warc", "directory"} & set(chosen):
            yield ("extract",), "is for web pages: sources with `warc` or `directory`"
        if given.get("chat") is not None:
            for key in chosen:
                yield ("chat",), f"reads files of records, not `{key}`"
            if given.get("template") is not None:
                yield ("template",), "`chat.template` says what the text is; leave this one out"
            if part_of(given.get("fields"), "text") is not None:
                yield ("fields", "text"), "`chat.messages` says where the text comes from; leave this one out"
            if given.get("unit", "document") != "document":
                yield ("unit",), "is for .txt files, and conversations are records"
        if chosen and given.get("template") is not None:
            yield ("template",), f"`{chosen[0]}` says what the text is; leave the template out"
