"""Modified Kneser-Ney with dictionaries, from the formulas: the oracle of the arrays."""

from __future__ import annotations

from collections import Counter

Gram = tuple[str, ...]


def ngrams_of(sentences: list[list[str]], order: int) -> list[Counter[Gram]]:
    """How often each n-gram is there, by order."""
    raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        padded = ["<s>", *sentence, "</s>"]
        for size in range(1, order + 1):
            for at in range(len(padded) - size + 1):
                raw[size - 1][tuple(padded[at : at + size])] += 1
    return raw


def estimated(sentences: list[list[str]], order: int) -> dict[Gram, tuple[float, float]]:
    """Probability and backoff weight of every n-gram; no logarithms."""
    raw = ngrams_of(sentences, order)
    adjusted: list[dict[Gram, int]] = []
    for size in range(1, order + 1):
        if size == order:
            counts = dict(raw[size - 1])
        else:
            before: dict[Gram, set[str]] = {}
            for gram in raw[size]:
                before.setdefault(gram[1:], set()).add(gram[0])
            counts = {
                gram: count if gram[0] == "<s>" else len(before[gram])
                for gram, count in raw[size - 1].items()
            }
        adjusted.append(counts)
    adjusted[0].pop(("<s>",), None)
    vocabulary = {word for sentence in sentences for word in sentence} | {"</s>", "<unk>"}
    below: dict[Gram, float] = {}
    found: dict[Gram, tuple[float, float]] = {}
    backoff: dict[Gram, float] = {}
    for counts in adjusted:
        if not counts:  # no sentence is so long
            break
        n = [sum(count == number for count in counts.values()) for number in range(5)]
        own = [0.0, 0.5, 1.0, 1.5]
        if n[1] and n[2] and n[3]:
            y = n[1] / (n[1] + 2 * n[2])
            formula = [0.0, *(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))]
            if all(0 <= one <= k for k, one in enumerate(formula)):
                own = formula
        totals: Counter[Gram] = Counter()
        left: dict[Gram, float] = {}
        for gram, count in counts.items():
            totals[gram[:-1]] += count
            left[gram[:-1]] = left.get(gram[:-1], 0.0) + own[min(count, 3)]
        now: dict[Gram, float] = {}
        grams = counts if len(next(iter(counts))) > 1 else {(word,): 0 for word in vocabulary} | counts
        for gram, count in grams.items():
            context = gram[:-1]
            gamma = left[context] / totals[context]
            lower = below[gram[1:]] if len(gram) > 1 else 1 / len(vocabulary)
            now[gram] = (count - own[min(count, 3)]) / totals[context] + gamma * lower
            if context:
                backoff[context] = gamma
        found |= {gram: (probability, 1.0) for gram, probability in now.items()}
        below = now
    found[("<s>",)] = (1.0, 1.0)
    return {gram: (p, backoff.get(gram, 1.0)) for gram, (p, _) in found.items()}


def slow_log10(model: dict[Gram, tuple[float, float]], context: Gram, word: str, order: int) -> float:
    """By the definition of backing off, from logarithms to the base 10."""
    gram = (*context, word)[-order:]
    if gram in model:
        return model[gram][0]
    if len(gram) == 1:
        return model[("<unk>",)][0]
    back = model[gram[:-1]][1] if gram[:-1] in model else 0.0
    return back + slow_log10(model, gram[1:-1], word, order)
