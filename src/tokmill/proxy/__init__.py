"""Small language models that judge data: which of two builds is the better one to train on?

    builds ─ targets.py ─┬─ train split ─ training.py ─ learning.py ─ model.py, widths.py ─> models, by seed
                         │                 └─ checkpoints.py: killed and resumed is the same curve
                         └─ held_out.py ─> texts ─ judging.py, choices.py ─> bits per byte, by domain
    by seed and domain ─ comparing.py ─> better, worse or noise ─ ablation.py ─> table, page, ablation.json

    schedule.py     how long, how fast, and how much at a time
    experiments.py  one model: trained once, judged as often as there are texts
    variants.py     a recipe without one of its sources or rules, or with other weights, and its runs
    mixtures.py     from weights and losses to the weights that would be better, and how sure that is
    overfitting.py  one batch learnt by heart, for `tokmill check`

PyTorch is imported by widths, model, vocabulary, learning, training, judging, choices, experiments and
overfitting, and by nothing else. Nothing is downloaded, and no pickle is read.
"""
