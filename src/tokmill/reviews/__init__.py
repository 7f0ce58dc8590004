"""An automatic reviewer: what is wrong with a run, a build or a recipe, with numbers.

    target ─ subject (what is there) ─ evidence (measured once, when asked for)
           ─┬─ checks ─> findings, by severity
            │            assumptions: what was not measured, and why
            │            recommendations
            └─ questions: what a project asks before it trains

    measured in     texts (characters of documents), rows (ids and index), overlap (between splits), probe
                    (naive Bayes)
    told in         sources, held_out, surface, separability, mixture, size, packing, composition: each topic
                    has its checks, their thresholds and its answers

Reads artifacts only. The same artifacts give the same review, wherever they lie.
"""
