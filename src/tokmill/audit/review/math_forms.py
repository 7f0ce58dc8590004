r"""How mathematics is written, form by form: final answers, calculator marks, LaTeX. A price is none of them.

    \boxed{18}   #### 72   <<48/2=24>>   The answer is …   Answer:   Solution:
    \frac \sqrt \sum …     \begin{align*}     $x^2 + 1$     $$…$$ \[…\] \(…\)

Between two dollars stands mathematics when it is a number alone, or has a command, or is made of short names, digits and
operators; and when neither dollar can be that of a price: `$5 for a book and $3` has words, `$12+$10` a digit behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

# Commands that nothing but mathematics has; \text and \left are in it too, but so are they elsewhere.
_COMMANDS = (
    "[dt]?frac|[dt]?binom|sqrt|sum|prod|i*int|lim|log|ln|sin|cos|tan|cdots?|ldots|dots|times|div|pm|mp|leq?|geq?|neq?|equiv"
    "|approx|cong|sim|infty|pi|theta|alpha|beta|gamma|lambda|omega|phi|angle|triangle|circ|degree|perp|parallel|overline"
    "|vec|hat|mathbb|mathcal|mathrm|pmod|bmod|to|rightarrow|Rightarrow|in|cup|cap|subset|lfloor|rfloor|forall|exists|partial"
)
_SIGN = r"[0-9+*/=^_(){}\[\],.<>|!':;% -]"
_VARIABLE = "(?:[A-Za-z]{1,2}|[A-Z]{3,6})"  # x, ab, ABCD; longer runs of letters are words
_INLINE = (
    r"-?[0-9][0-9.,]*",
    r"(?:[^$\s][^$\n]*)?\\[A-Za-z{][^$\n]*",
    rf"(?:[0-9(\[{{+|-]{_SIGN}*)?(?:{_VARIABLE}{_SIGN}+)*{_VARIABLE}(?:{_SIGN}*[0-9)\]}}!'|])?",
    rf"[0-9(\[{{-]{_SIGN}*[=^<>+*/,]{_SIGN}*[0-9)\]}}]",
)
INLINE = "inline formulas"

FORMS = {
    "\\boxed{…}": r"\\(?:boxed|fbox)\s*\{",
    "#### n": r"(?m)^####[ \t]+[-+$]*[0-9][0-9,./:]*%?[ \t]*$",
    "calculator marks <<…>>": r"<<[^<>\n]*[0-9][^<>\n]*=[^<>\n]*[0-9][^<>\n]*>>",
    "The answer is": r"(?i)\bthe (?:final )?answer is\b",
    "Answer:": r"(?im)^\s*(?:final )?answer:",
    "Solution:": r"(?im)^\s*solution:",
    "LaTeX commands": rf"\\(?:{_COMMANDS})(?:[^A-Za-z]|$)",
    "LaTeX environments": r"\\begin\{[A-Za-z]+\*?\}",
    INLINE: rf"\$(?:{'|'.join(_INLINE)})\$(?:[^0-9A-Za-z<(]|$)",
    "displayed formulas": r"(?s)\$\$[^$]+\$\$|\\\[.+?\\\]|\\\(.+?\\\)",
}


def find_forms(texts: Any) -> dict[str, NDArray[np.bool_]]:
    """Which texts of an Arrow column have each form. A dollar that is escaped (`\\$5`) opens and closes nothing."""
    unescaped = pc.replace_substring(texts, "\\$", "")
    return {
        name: np.asarray(pc.match_substring_regex(unescaped if name == INLINE else texts, form))
        for name, form in FORMS.items()
    }
