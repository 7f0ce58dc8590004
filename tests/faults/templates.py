"""Chat templates that somebody meant to hurt."""
# ruff: noqa: E501 - a template is read as a line

from __future__ import annotations


def grown(change: str, first: str = "'xx'", times: int = 99, shown: str = "{{ ns.x }}") -> str:
    """A variable that is changed again and again."""
    loop = f"{{% for n in range({times}) %}}{{% set ns.x = {change} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={first}) %}}{loop}{shown}"


LONG = "'y' * 999999"
# Ended by the budget, a width or a number.
TOO_MUCH = {
    "loops in loops": "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4,
    "loops that filter": "{% for a in range(9999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "a loop that calls itself": "{% for a in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
    "a tree of macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a filter in a loop": "{% for a in range(99999) %}{{ range(99999) | unique | list | length }}{% endfor %}",
    "a search in a loop": f"{{% set x = {LONG} %}}{{% for a in range(99999) %}}{{{{ 'yx' in x }}}}{{% endfor %}}",
    "a test in a loop": f"{{% set x = {LONG} %}}{{{{ (['a'] * 99999) | select('in', x) | list }}}}",
    "a slice in a loop": f"{{% set x = {LONG} %}}{{% for a in range(99999) %}}{{{{ x[1:] == x }}}}{{% endfor %}}",
    "a method in a loop": f"{{% set x = {LONG} %}}{{% for a in range(99999) %}}{{{{ x.count('yx') }}}}{{% endfor %}}",
    "much output": "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "a set of much output": "{% set x %}{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endset %}",
    "doubled by ~": grown("ns.x ~ ns.x"),
    "doubled by +": grown("ns.x + ns.x"),
    "doubled lists": grown("ns.x + ns.x", "[1]"),
    "times": "{{ 'x' * 9999999999 }}",
    "times from the left": "{{ 9999999999 * 'x' }}",
    "a list times": "{{ [1] * 9999999999 }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "squares": grown("ns.x * ns.x", "10"),
    "differences": grown("ns.x - (0 - ns.x)", "10", 99999),
    "center": "{{ 'x'.center(9999999999) }}",
    "ljust": "{{ 'x'.ljust(9999999999) }}",
    "zfill": "{{ 'x'.zfill(9999999999) }}",
    "expandtabs": "{{ ('\t' * 99999).expandtabs(99999) }}",
    "a width after %": "{{ '%9999999999d' % 1 }}",
    "a width that is given after %": "{{ '%*d' % (9999999999, 1) }}",
    "a width of the filter format": "{{ '%9999999999d' | format(1) }}",
    "a width of format": "{{ '{:>9999999999}'.format(1) }}",
    "a width that is given to format": "{{ '{:>{}}'.format(1, 9999999999) }}",
    "format_map": "{{ '{a:>9999999999}'.format_map({'a': 1}) }}",
    "many fields": "{% set x = 'y' * 9999 %}{{ ('{0}' * 9999).format(x) }}",
    "lists that share lists": grown("[ns.x, ns.x]", "['x']", 60),
    "lists that share lists, compared": grown("[ns.x, ns.x]", "['x']", 60, "{{ ns.x == [ns.x] }}"),
    "objects that share objects": grown("{'a': ns.x, 'b': ns.x}", "{}", 60, "{{ ns.x | tojson }}"),
    "tuples that share tuples": grown("(ns.x, ns.x)", "1", 60, "{{ ns.x | string }}"),
    "dict that shares": grown("dict(a=ns.x, b=ns.x)", "{}", 60, "{{ ns.x | tojson }}"),
    "replace": f"{{{{ ({LONG}) | replace('', {LONG}) }}}}",
    "the method replace": f"{{{{ ({LONG}).replace('', {LONG}) }}}}",
    "join": f"{{{{ range(99999) | join({LONG}) }}}}",
    "the method join": f"{{{{ ({LONG}).join(range(9999) | map('string')) }}}}",
    "indent by a text": f"{{{{ ('\n' * 99999) | indent({LONG}) }}}}",
    "indent": "{{ '\n' | indent(9999999999) }}",
    "the indent of tojson": "{{ (range(99999) | list) | tojson(indent=9999) }}",
    "the indent of tojson as a text": f"{{{{ (range(999) | list) | tojson(indent={LONG}) }}}}",
    "round": "{{ 1 | round(999999999, 'floor') }}",
    "batch": "{{ [1] | batch(999999999, 'x') | list }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "sum of lists": "{{ [[1]] | sum(start=[]) }}",
}  # fmt: skip
# Chance, or what has an address: one record is not read as another on the next day.
NOT_THE_SAME = {
    "a generator": "{{ messages | map(attribute='role') }}",
    "a function": "{{ raise_exception }}",
    "a function beside a text": "{{ 'x' ~ raise_exception }}",
    "a function in a list": "{{ [raise_exception] | string }}",
    "a function as a format": "{{ '%s' % raise_exception }}",
    "a loop": "{% for m in messages %}{{ loop }}{% endfor %}",
    "a macro": "{% macro m() %}{% endmacro %}{{ m }}",
}
# Out of reach, or no end.
FAILS = {
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__.os }}",
    "of format": "{{ '{0.__class__.__name__}'.format(messages) }}",
    "the filter attr": "{{ (messages | attr('__class__')).__name__ }}",
    "self": "{{ self._TemplateReference__context.environment.budget }}",
    "globals of a function": "{{ cycler.__init__.__globals__.os }}",
    "a list that is changed": "{% set _ = messages.append({'role': 'user'}) %}",
    "an object that is changed": "{% set _ = messages[0].update({'role': 'user'}) %}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import '/etc/passwd' as x %}",
    "the budget": "{{ messages | map('begin', 99) | list }}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a block that calls itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "itself": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "lists in lists": grown("[ns.x]", "[]", 99999, "{{ ns.x | tojson }}"),
    "generators in generators": grown("ns.x | map('upper')", "['a']", 99999, "{{ ns.x | list }}"),
    "half a character": "{{ '\\ud800' }}",
    "half a character in an error": "{{ raise_exception('\\ud800') }}",
    "by zero": "{{ 1 / 0 }}",
}
NO_TEMPLATE = {
    "many loops in each other": "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
    "many conditions in each other": "{% if 1 %}" * 150 + "{% endif %}" * 150,
    "many digits": f"{{{{ {'9' * 5000} }}}}",
    "many parentheses": f"{{{{ {'(' * 50_000}1{')' * 50_000} }}}}",
    "many lists": f"{{{{ {'[' * 900}{']' * 900} }}}}",
    "many sums": f"{{{{ 1{'+1' * 50_000} }}}}",
    "chance": "{{ [1, 2] | random }}",
    "a wide constant": "{{ 'x' | center(9999999999) }}",
}

# A template that most models could have: macros, tools, a variable of its own, a block that is learned.
PLAIN = """{%- set ns = namespace(first=true) %}
{%- macro called(call) %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>{% endmacro %}
{{- bos_token }}
{%- if tools %}{{ '<tools>' ~ tools | tojson(indent=2) ~ '</tools>' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not ns.first %}{{ raise_exception('only the first') }}{% endif %}
    {%- set ns.first = false %}
    {{- '<|im_start|>' + message['role'] + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content | trim }}
        {%- for call in message.tool_calls or [] %}{{ called(call) }}{% endfor %}{{ eos_token }}{% endgeneration %}
    {%- elif message.content is string and message.content.split(' ')[-1:] != ['x' * 3] %}
        {{- message.content }}
    {%- endif %}
    {{- '<|im_end|>\n' if not loop.last else '%s' % '<|im_end|>' }}
{%- endfor %}
"""
