"""Where chat templates run: no Python in reach, no chance, no address, and an end to all that they do.

    template ─ parse ─> loops step, literals and `~` are weighed ─ compile ─> render ─> text, piece by piece
                                                      every step and all that is made is counted ─> TooMuch

Jinja's own sandbox keeps templates from Python's attributes and from changing objects. It lets them loop
over loops, double a text forty times, and ask for a billion blanks. Here a template has a budget that grows
with the conversation: it is counted, not timed, so a record is refused on every machine or on none.

    steps    iterations, calls, filters, tests, operators
    units    characters that are made or looked through, and elements of lists, each as `_ELEMENT` characters

What grows by a number or a product is weighed before it is made. `random` and `lipsum` are chance, and an
object that is no value (a generator, a macro) is written with its address: templates have none of these.
"""
# ruff: noqa: N802 - visitors are named as Jinja names its nodes

from __future__ import annotations

import functools
import json
import re
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any, cast

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Templates that look at all messages again for each of a thousand take a million steps for 50 kB or more.
_STEPS, _STEPS_PER_CHAR = 20_000, 20
_UNITS, _UNITS_PER_CHAR = 1 << 25, 32
_ELEMENT = 16
# A width, a precision, a count that a text is asked for; and the bits of a whole number.
_MAX_WIDTH, _MAX_BITS = 10_000, 1 << 16
_MAX_DEPTH = 100  # of lists; as of messages (chat.py)

_VALUES = (str, int, float, range, type(None), jinja2.Undefined)
_LISTS = (list, tuple, dict)
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{5}|\*)|{[^}]*\d{5}")
_NESTED = re.compile(r":[^}]*{")  # a width that is an argument
# Filters that write texts of any width, or by chance; no model's template has them.
_WITHOUT = ("center", "pprint", "random", "urlize", "wordwrap", "xmlattr")
_TAKE_WIDTHS = ("batch", "indent", "round", "slice", "tojson")
_METHODS_WITHOUT = ("center", "encode", "expandtabs", "ljust", "rjust", "to_bytes", "translate", "zfill")


class TooMuch(jinja2.TemplateError):
    """A template that asks for more than a conversation needs."""


class _Budget(threading.local):
    """Of the conversation that this thread renders; what is known while compiling has one as well."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, chars: int) -> None:
        self.steps = _STEPS + _STEPS_PER_CHAR * chars
        self.units = _UNITS + _UNITS_PER_CHAR * chars

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TooMuch("takes more steps than a conversation of this size needs")

    def make(self, units: int) -> None:
        self.units -= units
        if self.units < 0:
            raise TooMuch("makes more text than a conversation of this size needs")


class _Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %}: a mark on either side."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja has it
    marks = ("", "")

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (
            nodes.Output([nodes.TemplateData(mark)], lineno=line)
            for mark in cast(Sandbox, self.environment).marks
        )
        return [begin, *body, end]


class _Code(CodeGenerator):
    """Python of a template, in which what grows asks first."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        step = nodes.EnvironmentAttribute("step")
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(nodes.Call(step, [], [], None, None), node.test, lineno=node.lineno)
        super().visit_For(node, frame)

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:
        super().visit_ExprStmt(node, frame)
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.write("()")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined(")
        if frame.eval_ctx.volatile:
            self.write("markup_join if context.eval_ctx.volatile else ")
        self.write("markup_join, (" if frame.eval_ctx.autoescape else "str_join, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(")
        self._weighed(self.visit, node.expr, frame)
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            self._weighed(self.visit, operand.expr, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._weighed(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._weighed(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._weighed(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._weighed(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _weighed(self, visit: Callable[..., None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.weighed(")
        visit(node, frame)
        self.write(")")


class Sandbox(ImmutableSandboxedEnvironment):
    """`marks` go around blocks of {% generation %}."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

    def __init__(self, marks: tuple[str, str]) -> None:
        self.marks = marks
        self.budget = _Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            finalize=self._written,
        )
        self.concat = self._concat  # type: ignore[method-assign]
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        for name in _WITHOUT:
            del self.filters[name]
        self.filters["tojson"] = _tojson
        before = {
            "format": self._before_format,
            "indent": self._before_indent,
            "join": self._before_join,
            "replace": self._before_replace,
            "string": self._before_string,
            "sum": _before_sum,
            "tojson": self._before_tojson,
        }
        acts: dict[str, Any] = self.filters
        for name, act in list(acts.items()):
            acts[name] = self._counted(name, act, before.get(name))
        tests: dict[str, Any] = self.tests
        for name, act in list(tests.items()):
            tests[name] = self._counted(name, act)

    def compiled(self, template: str) -> jinja2.Template:
        """A TemplateError, or what Python says of code that is nested too deeply or of a number too long."""
        self.budget.begin(len(template))  # what is constant is made now
        return self.from_string(template)

    def render(self, template: jinja2.Template, chars: int, **known: Any) -> str:
        """`chars`: of the conversation, by which the budget is measured."""
        self.budget.begin(chars)
        return self._concat(template.root_render_func(template.new_context(known)))

    # --- as the code of a template calls it ---

    def step(self) -> bool:
        self.budget.step()
        return True

    def weighed(self, value: Any) -> Any:
        """Made, compared, or looked through."""
        self.budget.step()
        self._weigh(value)
        return value

    def joined(self, join: Callable[[Iterable[Any]], str], parts: tuple[Any, ...]) -> str:
        self.budget.step()
        for part in parts:
            self._before_string(part)
        return join(parts)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.budget.step()
        __self._weigh(*args, *kwargs.values())
        if isinstance(__obj, types.BuiltinMethodType) and isinstance(__obj.__self__, str | int):
            __self._weigh(__obj.__self__)
            args = __self._before_method(__obj.__self__, __obj.__name__, args)
        elif getattr(__obj, "__name__", "") in ("format", "format_map"):  # wrapped by Jinja's sandbox
            text = getattr(getattr(__obj, "__wrapped__", None), "__self__", "")
            __self._before_format(text, *args, **kwargs)
        made = super().call(__context, __obj, *args, **kwargs)
        __self._weigh(made)
        return made

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.budget.step()
        sizes = [len(value) if isinstance(value, str | list | tuple) else None for value in (left, right)]
        if operator == "%" and isinstance(left, str):
            self._before_format(left, *(right if isinstance(right, tuple) else (right,)))
        elif operator == "*" and sizes != [None, None]:
            size, times = (sizes[0], right) if sizes[0] is not None else (sizes[1], left)
            unit = 1 if isinstance(left, str) or isinstance(right, str) else _ELEMENT
            self.budget.make(unit * (size or 0) * max(int(times), 0))
        elif isinstance(left, int) and isinstance(right, int):
            _check_bits(operator, left, right)
        made = super().call_binop(context, operator, left, right)
        self._weigh(made)
        return made

    # --- weights ---

    def _weigh(self, *values: Any) -> None:
        for value in values:
            if isinstance(value, str | list | tuple | dict | range):
                self.budget.make(self._weight(value))

    def _weight(self, value: Any) -> int:
        """As many units as it is written with, or held in: one list that is in two others is two."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, range):
            return _ELEMENT * len(value)
        return self._weight_of_list(value, {}, 0) if isinstance(value, _LISTS) else _ELEMENT

    def _weight_of_list(self, value: Any, weights: dict[int, int], depth: int) -> int:
        if (known := weights.get(id(value))) is not None:
            return known
        if depth > _MAX_DEPTH:
            raise TooMuch("has lists in lists in lists")
        parts = _parts(value)
        self.budget.make(len(parts))  # for looking at them
        weight = _ELEMENT * (1 + len(parts))
        for part in parts:
            if isinstance(part, str):
                weight += len(part)
            elif isinstance(part, _LISTS):
                weight += self._weight_of_list(part, weights, depth + 1)
        weights[id(value)] = weight
        return weight

    def _written(self, value: Any) -> Any:
        """What a template writes between {{ and }}."""
        if not isinstance(value, str):
            self._before_string(value)
        return value

    def _concat(self, pieces: Iterable[str]) -> str:
        found = []
        for piece in pieces:
            self.budget.make(len(piece))
            found.append(piece)
        return "".join(found)

    # --- before something is made ---

    def _counted(
        self, name: str, act: Callable[..., Any], before: Callable[..., None] | None = None
    ) -> Callable[..., Any]:
        """A filter or a test."""
        first = int(hasattr(act, "jinja_pass_arg"))
        takes_widths = name in _TAKE_WIDTHS

        @functools.wraps(act)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            if takes_widths:
                _check_widths([*args[first + 1 :], *kwargs.values()])
            if name == "join" and len(args) > first and not isinstance(args[first], str | list | tuple):
                args = (*args[:first], list(args[first]), *args[first + 1 :])  # of a generator, once
            if before is not None:
                before(*args[first:], **kwargs)
            self._weigh(*args[first:], *kwargs.values())
            made = act(*args, **kwargs)
            self._weigh(made)
            return made

        return counted

    def _before_method(self, of: str | int, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, of which a generator is a list."""
        if name in _METHODS_WITHOUT:
            raise TooMuch(f"calls {name}, which writes texts of any width")
        if name == "replace" and len(args) > 1:
            self._before_replace(of, *args)
        elif name == "join" and args:
            args = (list(args[0]), *args[1:])
            self._before_join(args[0], of)
        return args

    def _before_replace(self, text: Any, old: Any = "", new: Any = "", *more: Any, **others: Any) -> None:
        text, old, new = str(text), str(old), str(new)
        self.budget.make(len(text) + text.count(old) * len(new))

    def _before_join(self, value: Any, d: Any = "", *more: Any, **others: Any) -> None:
        self._before_string(value)
        self.budget.make(len(value) * len(str(d)))

    def _before_indent(self, text: Any, width: Any = 4, *more: Any, **others: Any) -> None:
        blanks = width if isinstance(width, int) else len(str(width))
        self.budget.make((1 + len(str(text).splitlines())) * blanks)

    def _before_format(self, text: Any, /, *args: Any, **kwargs: Any) -> None:
        values = [*args, *kwargs.values()]
        if _WIDE.search(str(text)):
            raise TooMuch("writes a text of any width")
        nested = _NESTED.search(str(text))
        if nested:
            _check_widths(values)
        fields = str(text).count("%") + str(text).count("{")
        self.budget.make(fields * (_MAX_WIDTH if nested else 0))
        for value in values:
            self._before_string(value)
            self.budget.make(fields * self._weight(value))

    def _before_tojson(
        self, value: Any, ensure_ascii: Any = False, indent: Any = None, *more: Any, **others: Any
    ) -> None:
        weight = self._weight(value)
        self.budget.make(weight)
        if indent is not None:
            blanks = indent if isinstance(indent, int) else len(str(indent))
            self.budget.make(weight // _ELEMENT * blanks)

    def _before_string(self, value: Any) -> None:
        """Only values are written: what else there is has an address."""
        self.budget.make(self._weight(value))
        waiting, seen = [value], set[int]()
        while waiting:
            one = waiting.pop()
            if isinstance(one, _LISTS):
                if id(one) not in seen:
                    seen.add(id(one))
                    waiting += _parts(one)
            elif not isinstance(one, _VALUES):
                raise jinja2.TemplateError(f"writes a {type(one).__name__}, which is no text")


def _parts(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else list(value)


def _check_widths(numbers: Iterable[Any]) -> None:
    for number in numbers:
        if isinstance(number, int) and abs(number) > _MAX_WIDTH:
            raise TooMuch(f"asks for {number if abs(number) < 1 << 64 else 'a number of'} characters")


def _check_bits(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    if bits > _MAX_BITS:
        raise TooMuch("counts further than any conversation")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Of transformers: no escapes of HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _before_sum(values: Any, attribute: Any = None, start: Any = 0) -> None:
    """Lists would be copied for each."""
    if not isinstance(start, int | float):
        raise TooMuch("adds what is no number")
