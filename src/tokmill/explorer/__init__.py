"""A run in the browser: a local web application that asks the tables and the audit of a run.

    browser ─ token, Host, Origin (security) ─> routes (server) ─> Site ─┬ columns   one value per document
                                                                         ├ query     filters, order, a page
                                                                         ├ document  its history and texts
                                                                         └ tokmill.audit, tokmill.reports

Nothing is read before it is asked for, and nothing is written but what a person confirms.
"""
