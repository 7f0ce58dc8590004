"""An automatic reviewer: what is wrong with a run, a build or a recipe, with numbers.

    target ─ subject (what is there) ─ evidence (measured once, when asked for) ─ checks ─┬─ findings, by severity
                                                                                        ├─ assumptions: what was
                                                                                        │  not measured, and why
                                                                                        └─ recommendations
                                                       └─ questions: what a project asks before it trains

Reads artifacts only. The same artifacts give the same review, wherever they lie.
"""
