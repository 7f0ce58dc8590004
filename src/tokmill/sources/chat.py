"""Conversations: a list of messages, rendered by the chat template of a model, regions marked.

    messages ─ roles and texts, plain ──────────────── template ─> as a model is shown it     ┐ equal without
    messages ─ every text between two marks ────────── template ─> the same with marks        ┘ their marks?
             ─> the text of the document (tokmill.tokenizers.regions), or a reason why there is none

Templates are Jinja, as in a `tokenizer_config.json` or a `chat_template.jinja`, and run in the sandbox that
transformers runs them in (huggingface.co/docs/transformers/chat_templating): no attribute of Python is in
reach, objects cannot be changed. They see messages, tools, bos_token, eos_token, add_generation_prompt
(false), `raise_exception` and `tojson`. There is no `strftime_now`: what is written does not depend on the
day; templates that ask whether it is defined have a date of their own.

Marks are put inside of the white space around a text, where a template trims; of an answer that begins with
white space, before it, if the template leaves it. A template that has {% generation %} blocks says itself
what is learned; otherwise that is what assistants say, and what ends it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from tokmill.errors import MissingExtra, RecipeError, StorageError, install_hint
from tokmill.kernels.jsonlines import MAX_DEPTH
from tokmill.recipe.names import ROLES
from tokmill.storage.disk import load_bytes
from tokmill.tokenizers.regions import ANSWER, CONTENT, ENDING, GENERATED, RESERVED, TEMPLATE

if TYPE_CHECKING:
    from tokmill.recipe import Chat

# The format that ChatML describes, as most models that use it have it.
CHATML: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}{% endfor %}"
)

_ROLES: Final = {**{role: role for role in ROLES}, "human": "user", "gpt": "assistant"}
_CONFIG, _JINJA = "tokenizer_config.json", "chat_template.jinja"
_MAX_TEMPLATE_BYTES, _MAX_CONFIG_BYTES = 1 << 20, 16 << 20

# While a template renders: what opens and closes a text, and a block of {% generation %}.
_SAYS, _ANSWERS, _CLOSES, _BEGINS, _ENDS = (RESERVED[number] for number in range(16, 21))
_ANY = re.compile(f"([{_SAYS}{_ANSWERS}{_CLOSES}{_BEGINS}{_ENDS}])")
_BLANKS = re.compile(f"( +)({_ANSWERS})")
_HALVES = re.compile("[\ud800-\udfff]")
_IS_RESERVED = re.compile(f"[{RESERVED}]")

# Of tools and their calls: templates compare these, or count their characters.
_NOT_TEXT: Final = ("type", "id", "role", "tool_call_id")

Fault = tuple[str, str]  # reason and detail


class ChatOptions(msgspec.Struct, frozen=True):
    """`chat` of a source, and the template itself: all that can change a byte of a conversation."""

    names: dict[str, str]
    roles: dict[str, str]
    tools: str | None
    loss: Literal["assistant", "all"]
    template: str
    template_sha256: str
    bos_token: str
    eos_token: str


def resolve_chat(chat: Chat, base: Path, source: str) -> ChatOptions:
    where = f"sources: {source}: chat.template"
    found = _Template(CHATML) if chat.template == "chatml" else _find_template(chat.template, base, where)
    if len(found.text) > _MAX_TEMPLATE_BYTES or any(_HALVES.search(part) for part in found):
        raise RecipeError(
            "the template or a token beside it has half of a surrogate pair, or it is larger than a megabyte",
            where=where,
            next="give the file that the model has",
        )
    if _IS_RESERVED.search(found.text):
        raise RecipeError(
            "the template has a noncharacter (U+FDD0 to U+FDEF), which marks regions here",
            where=where,
            next="take it out of the template",
        )
    _compiled(found.text, where)
    return ChatOptions(
        names={chat.names.role: "role", chat.names.content: "content"},
        roles={**_ROLES, **chat.roles},
        tools=chat.tools,
        loss=chat.loss,
        template=found.text,
        template_sha256=hashlib.sha256(found.text.encode()).hexdigest(),
        bos_token=found.bos_token,
        eos_token=found.eos_token,
    )


# --- the template ---


class _Template(NamedTuple):
    text: str
    bos_token: str = ""
    eos_token: str = ""


def _find_template(path: str, base: Path, where: str) -> _Template:
    if "{%" in path or "{{" in path:
        raise RecipeError(
            "this is a template, and the path of one is needed",
            where=where,
            next=f"write it to a file, say {_JINJA} beside the recipe, and give its name",
        )
    place = base / Path(path).expanduser()
    if place.is_dir():
        place = next((place / name for name in (_JINJA, _CONFIG) if (place / name).is_file()), place)
    if not place.is_file():
        raise RecipeError(
            f"{place} has neither {_JINJA} nor {_CONFIG}" if place.is_dir() else f"no such file: {place}",
            where=where,
            next=f"give a {_CONFIG}, a {_JINJA} or the directory that has one, relative to the recipe; or "
            "`template: chatml`",
        )
    if place.suffix == ".json":
        config = _load_config(place, where)
        return _Template(_template_of(config, place, where), *_tokens_of(config))
    beside = place.with_name(_CONFIG)
    tokens = _tokens_of(_load_config(beside, where)) if beside.is_file() else ()
    return _Template(_load_text(place, where), *tokens)


def _load_text(path: Path, where: str) -> str:
    try:
        size = path.stat().st_size
        if size > (_MAX_CONFIG_BYTES if path.suffix == ".json" else _MAX_TEMPLATE_BYTES):
            raise RecipeError(
                f"{path} has {size:,} bytes: no chat template is that large",
                where=where,
                next="give the file that the model has",
            )
        return load_bytes(path).decode()
    except (UnicodeDecodeError, StorageError, OSError) as error:
        raise RecipeError(
            f"{path} cannot be read as text ({error})", where=where, next="give another"
        ) from None


def _load_config(path: Path, where: str) -> dict[str, Any]:
    try:
        found = json.loads(_load_text(path, where))
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not JSON ({error})", where=where, next="give another file") from None
    if not isinstance(found, dict):
        raise RecipeError(f"{path} is no JSON object", where=where, next=f"give a {_CONFIG}")
    return found


def _template_of(config: Mapping[str, Any], path: Path, where: str) -> str:
    """A text; or several with their names, of which `default` is meant."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise RecipeError(
            f"{path} has no `chat_template`",
            where=where,
            next=f"give the {_JINJA} of the model, or `template: chatml`",
        )
    return found


def _tokens_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """bos and eos: a text, an object with its `content`, or nothing."""

    def spelled(value: Any) -> str:
        value = value.get("content") if isinstance(value, dict) else value
        return value if isinstance(value, str) else ""

    return spelled(config.get("bos_token")), spelled(config.get("eos_token"))


@functools.lru_cache(maxsize=8)
def _compiled(template: str, where: str) -> Any:
    """(what renders it, whether it has {% generation %} blocks)."""
    try:
        from tokmill.sources.sandbox import Sandbox
    except ImportError:
        raise MissingExtra(
            "chat templates need the package jinja2", where=where, next=install_hint("chat")
        ) from None
    sandbox = Sandbox((_BEGINS, _ENDS))
    try:
        compiled = sandbox.compiled(template)
    except Exception as error:  # noqa: BLE001  (Jinja's, and those of Python's compiler)
        line = getattr(error, "lineno", None)
        raise RecipeError(
            f"the chat template is not Jinja{f' (line {line})' if line else ''}: "
            f"{error or type(error).__name__}",
            where=where,
            next="give the file that the model has",
        ) from None
    has_generation = re.search(r"{%[-+]?\s*generation\b", template) is not None
    return functools.partial(sandbox.render, compiled), has_generation


# --- a conversation ---


class Unusable(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class Conversations:
    """Renders the messages of records."""

    def __init__(self, options: ChatOptions, source: str) -> None:
        self._options = options
        self._render, has_generation = _compiled(options.template, f"sources: {source}: chat.template")
        self._finish = (
            _finish_all
            if options.loss == "all"
            else (_finish_generated if has_generation else _finish_answers)
        )

    def render(self, messages: str, tools: str | None) -> str:
        """JSON in, the marked text out; `Unusable` where there is none."""
        if _IS_RESERVED.search(messages) or (tools and _IS_RESERVED.search(tools)):
            raise Unusable("reserved_character", "holds a noncharacter, U+FDD0 to U+FDEF")
        said = self._messages(_decoded(messages, "messages"))
        given = None if tools is None else _decoded(tools, "tools")
        if _is_reserved([said, given]):  # spelled with an escape
            raise Unusable("reserved_character", "holds a noncharacter, U+FDD0 to U+FDEF")
        chars = len(messages) + len(tools or "")
        plain = _ANY.sub("", self._rendered(said, given, chars))
        wide = any(message["role"] == "assistant" and _text_of(message)[:1].isspace() for message in said)
        for is_wide in (True, False) if wide else (False,):
            marked = [_marked(message, is_wide) for message in said]
            try:
                found = self._rendered(marked, _marked_tree(given, _SAYS), chars)
            except Unusable:
                continue  # it looks into the texts
            if _ANY.sub("", found) == plain and _is_in_turn(found):
                return self._finish(found)
        raise Unusable(
            "template_rewrites_content", "the template changes, cuts or compares the text of a message"
        )

    def _rendered(self, messages: list[Any], tools: Any, chars: int) -> str:
        options = self._options
        try:
            text = self._render(
                chars,
                messages=messages,
                tools=tools,
                bos_token=options.bos_token,
                eos_token=options.eos_token,
                add_generation_prompt=False,
            )
            text.encode()
        except Exception as error:  # noqa: BLE001  (the code is the template's, and so is what it raises)
            said = f"{type(error).__name__}: {error}"[:200].encode(errors="replace").decode()
            raise Unusable("template_error", said) from None
        return str(text)

    def _messages(self, given: Any) -> list[dict[str, Any]]:
        if not isinstance(given, list) or not given:
            what = "an empty list" if given == [] else _kind(given)
            raise Unusable("bad_messages", f"{what} where a list of messages is needed")
        return [self._message(number, message) for number, message in enumerate(given)]

    def _message(self, number: int, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise Unusable("bad_messages", f"message {number} is {_kind(given)}, not an object")
        names = self._options.names
        given = {str(key): value for key, value in given.items() if value is not None}
        message: dict[str, Any] = {names.get(key, key): value for key, value in given.items()}
        # of two keys for one thing the one that the recipe names
        message |= {names[key]: value for key, value in given.items() if key in names}
        role = message.get("role")
        known = self._options.roles.get(role) if isinstance(role, str) else None
        if known is None:
            told = "has no role" if role is None else f"has the role {role!r:.40}"
            raise Unusable("bad_messages", f"message {number} {told}")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(_texts(number, content))
        if content is None and known == "assistant" and message.get("tool_calls"):
            content = ""
        if not isinstance(content, str):
            raise Unusable("bad_messages", f"message {number} has {_kind(content)} where its text should be")
        return {**message, "role": known, "content": content}


def _texts(number: int, parts: list[Any]) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else None
            told = f"a part of the type {kind!r:.40}" if kind else _kind(part)
            raise Unusable("bad_messages", f"message {number} has {told}, and only text is read")
        yield part["text"]


def _decoded(spelled: str, what: str) -> Any:
    """Files of columns may hold the list as a string that spells it."""
    try:
        found = msgspec.json.decode(spelled)
        return msgspec.json.decode(found) if isinstance(found, str) else found
    except RecursionError:
        raise Unusable("too_deep", f"nested deeper than {MAX_DEPTH} levels") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unusable("bad_messages", f"{what}: {error}"[:200]) from None


def _kind(value: Any) -> str:
    names = {str: "a string", list: "a list", dict: "an object", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")


def _is_reserved(values: list[Any]) -> bool:
    """Does any text in it hold one? All that is inside of each other is looked at, one depth at a time."""
    for _ in range(MAX_DEPTH + 1):
        if not values:
            return False
        if any(isinstance(one, str) and _IS_RESERVED.search(one) for one in values):
            return True
        objects = [one for one in values if isinstance(one, dict)]
        values = [inner for one in values if isinstance(one, list) for inner in one]
        values += [inner for one in objects for item in one.items() for inner in item]
    raise Unusable("too_deep", f"nested deeper than {MAX_DEPTH} levels")  # as a record is; else Python ends


# --- marks ---


def _text_of(message: Mapping[str, Any]) -> str:
    return str(message["content"])


def _marked(message: dict[str, Any], is_wide: bool) -> dict[str, Any]:
    """The message with every text of it between marks."""
    is_answer = message["role"] == "assistant"
    mark = _ANSWERS if is_answer else _SAYS
    content = _between(_text_of(message), mark, is_wide=is_wide and is_answer)
    others = {
        key: _marked_tree(value, mark) if key not in ("role", "content", *_NOT_TEXT) else value
        for key, value in message.items()
    }
    return {**others, "content": content}


def _between(text: str, mark: str, *, is_wide: bool = False) -> str:
    inner = text.strip()
    if not inner:
        return text  # white space alone has no control token, and templates ask whether there is a text
    begin = 0 if is_wide else text.index(inner)
    end = len(text.rstrip())
    return f"{text[:begin]}{mark}{text[begin:end]}{_CLOSES}{text[end:]}"


def _marked_tree(value: Any, mark: str) -> Any:
    """Tools and their calls: every text that is a value."""
    if isinstance(value, str):
        return _between(value, mark)
    if isinstance(value, list):
        return [_marked_tree(one, mark) for one in value]
    if isinstance(value, dict):
        return {k: v if k in _NOT_TEXT else _marked_tree(v, mark) for k, v in value.items()}
    return value


def _is_in_turn(rendered: str) -> bool:
    """What was opened is closed before the next is opened: no text was cut."""
    is_open = False
    for mark in _ANY.findall(rendered):
        if mark in (_SAYS, _ANSWERS, _CLOSES):
            if is_open == (mark != _CLOSES):
                return False
            is_open = not is_open
    return not is_open


def _finish_answers(rendered: str) -> str:
    """Blanks that a template has before an answer are its own: a prompt ends before them."""
    closing = TEMPLATE
    rendered = _BLANKS.sub(r"\2\1", rendered)

    def lasting(found: re.Match[str]) -> str:
        nonlocal closing
        if found[0] == _CLOSES:
            return closing
        closing = ENDING if found[0] == _ANSWERS else TEMPLATE
        return ANSWER if found[0] == _ANSWERS else CONTENT

    return TEMPLATE + _ANY.sub(lasting, rendered)


def _finish_generated(rendered: str) -> str:
    around = TEMPLATE

    def lasting(found: re.Match[str]) -> str:
        nonlocal around
        if found[0] in (_BEGINS, _ENDS):
            around = GENERATED if found[0] == _BEGINS else TEMPLATE
            return around
        if found[0] == _CLOSES:
            return around
        return ANSWER if around == GENERATED else CONTENT

    return TEMPLATE + _ANY.sub(lasting, rendered)


def _finish_all(rendered: str) -> str:
    kept = {_SAYS: ANSWER, _ANSWERS: ANSWER, _CLOSES: GENERATED}
    return GENERATED + _ANY.sub(lambda found: kept.get(found[0], ""), rendered)
