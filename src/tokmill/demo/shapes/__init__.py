"""The shapes of the word problems: each draws its numbers and words, asks, and works the answer out.

    shape(draw) -> Worked
        question   what is asked, every given quantity in digits
        steps      sentences whose equations a reader (and a test) can check one by one
        value      the integer asked for
        check      the value again, as an integer expression in + - * // % over the givens

Where the answer is hidden behind the givens (ages, heads and legs), the value is drawn first and the givens
follow from it; `check` always goes the other way, so the two agree only if the problem is sound.
"""
