"""What goes into the training data and where: decided on lengths alone, carried out later.

documents per source, weights, budget ─ schedule ─> which documents, in which order      mixture budget scheduling turning
their lengths ─ plan_* ─> Plan: rows, and the spans of documents in them                 concat fitting single
Plan, ids ─ gather_rows ─> rows of ids                                                   gather
lengths ─ compare_strategies ─> what each strategy would cost                            compare
"""
