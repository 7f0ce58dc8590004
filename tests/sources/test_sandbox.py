"""What templates of models do is done as Jinja's own sandbox does it. What hurts is in faults/templates.py."""
# ruff: noqa: E501 - a template is read as a line

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("jinja2")

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from faults import templates
from tokmill.sources.sandbox import Sandbox, TooMuch

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"é": [1, None, 2.5]}}}
MESSAGES = [
    {"role": "system", "content": "You are “n° 1”."},
    {"role": "user", "content": "a, b <b>\n\n c "},
    {"role": "assistant", "content": " Well\n", "tool_calls": [CALL, CALL]},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
DONE = {
    "texts": "{{ 'a' ~ 1 ~ none ~ [1, 'b'] ~ {'c': 2} }}|{{ 'a' + 'b' }}|{{ 'ab' * 3 }}|{{ '%s: %5.2f' % ('a', 1) }}",
    "format": "{{ '{:>5}|{}|{x}'.format(1, 'b', x=2) }}|{{ '%s, %s' | format('a', 12345678) }}|{{ '%%' }}",
    "methods": "{% set x = messages[1].content %}{{ x.split(', ') }}|{{ x.replace(',', ';;', 1).strip().upper() }}|"
    "{{ ', '.join(messages | map(attribute='role')) }}|{{ x.startswith('a') }}|{{ x.find('b') }}|{{ x.title() }}",
    "filters": "{{ messages | map(attribute='role') | join(', ') }}|{{ messages[1].content | trim | replace('b', 'BB') "
    "| indent(2, first=true) }}|{{ [3, 1, 2] | sort | list }}|{{ 'a' | default('b') }}|{{ x | default(99999999) }}|"
    "{{ '12345678' | int + 1 }}|{{ [1, 2, 3] | sum }}|{{ 2.567 | round(2) }}|{{ '<' | e }}|{{ [1, 2, 3] | batch(2) | list }}",
    "selections": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|"
    "{{ messages | rejectattr('tool_calls', 'defined') | map(attribute='role') | list }}|{{ [1, 2] | select('odd') | list }}",
    "loops": "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ m.role }}"
    "{% if loop.last %}{% break %}{% endif %}{% else %}none{% endfor %}{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }}{% endfor %}",
    "recursion": "{% for n in [1, [2, [3]]] recursive %}{{ loop(n) if n is iterable else n }}{% endfor %}",
    "macros": "{% macro m(a, b=2) %}{{ a }}-{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{{ m(1234567, b=3) }}"
    "{% call m(1) %}x{% endcall %}",
    "slices": "{{ messages[::-1] | map(attribute='role') | list }}|{{ messages[1].content[:3] }}|{{ messages[-1]['role'] }}",
    "tests": "{{ messages is sequence }}{{ x is defined }}{{ 'a' in 'abc' }}{{ 1 < 2 <= 2 }}{{ 3 not in [1, 2] }}{{ none is none }}",
    "numbers": "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 1 - 5 }}{{ 1.5 * 2 }}{{ -3 | abs }}",
    "json": "{{ tools | tojson }}|{{ tools | tojson(indent=2) }}|{{ {'é': '<'} | tojson(separators=(',', ':'), sort_keys=true) }}",
    "namespaces": "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ m.role %}{% endfor %}{{ ns.x }}",
    "a text that is set": "{% set x %}a{{ 1 }}b{% endset %}{{ x ~ x }}{% filter upper %}abc{% endfilter %}",
    "escapes": "{% autoescape true %}{{ '<' ~ '>' }}{{ '<b>' | safe ~ '<' }}{% endautoescape %}",
    "nothing": "{{ nothing }}{{ messages[0].nothing }}{{ range(3) }}{{ dict(a=1) }}",
}  # fmt: skip


def plain(template: str) -> str:
    """As transformers has it: huggingface.co/docs/transformers/chat_templating."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment.filters["tojson"] = tojson
    return environment.from_string(template).render(messages=MESSAGES, tools=TOOLS, bos_token="<s>")


@pytest.mark.parametrize("name", DONE)
def test_what_is_written_is_what_jinja_writes(name: str) -> None:
    sandbox = Sandbox(("", ""))
    written = sandbox.render(
        sandbox.compiled(DONE[name]), 100, messages=MESSAGES, tools=TOOLS, bos_token="<s>"
    )
    assert written
    assert written == plain(DONE[name])


def test_a_template_with_blocks_that_are_learned_is_the_same_without_its_marks() -> None:
    sandbox = Sandbox(("[", "]"))
    written = sandbox.render(
        sandbox.compiled(templates.PLAIN), 100, messages=MESSAGES, tools=TOOLS, bos_token="<s>"
    )
    bare = templates.PLAIN.replace("{%- generation", "{%- if true").replace("endgeneration", "endif")
    assert written.count("[Well") == 1
    assert plain(bare) == written.replace("[Well", "Well").replace("]<|im_end|>", "<|im_end|>")


def test_the_budget_grows_with_the_conversation_and_begins_anew_with_each() -> None:
    sandbox = Sandbox(("", ""))
    template = sandbox.compiled("{% for a in messages %}{% for b in messages %}x{% endfor %}{% endfor %}")
    messages = [{"role": "user", "content": "x" * 30}] * 600
    for _ in range(3):
        assert len(sandbox.render(template, len(json.dumps(messages)), messages=messages)) == 360_000
    with pytest.raises(TooMuch, match="more steps"):
        sandbox.render(template, 100, messages=messages)


@pytest.mark.parametrize("words", [50, 5_000])
def test_a_thousand_messages_are_not_too_much_for_a_template_of_a_model(words: int) -> None:
    sandbox = Sandbox(("", ""))
    messages = [{"role": "user", "content": "word " * (words // 50)}, MESSAGES[2]] * 500
    written = sandbox.render(
        sandbox.compiled(templates.PLAIN), len(json.dumps(messages)), messages=messages, tools=TOOLS
    )
    assert written.count("<|im_start|>") == 1000
