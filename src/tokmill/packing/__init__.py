"""What goes into the training data and where: decided on lengths alone, carried out later.

documents per source, weights, budget ─ schedule ─> which documents, in which order      mixture, schedule
their lengths ─ plan_* ─> Plan: rows, and the spans of documents in them                 plan
Plan, ids ─ gather_rows ─> rows of ids                                                  plan
lengths ─ compare_strategies ─> what each layout would cost                              costs
"""
