"""Every bound that a check holds a figure against, in one place; docs/review.md lists them with their reasons."""

from __future__ import annotations

# --- splits ---

MAX_NEAR_OVERLAP = 0.001  # of the held-out documents; an exact copy is one too many
MIN_HELD_OUT, MAX_HELD_OUT = 0.01, 0.20  # of the tokens, or of the documents where there are no tokens

MAX_NOISE = 0.05  # half of a 95 % interval, of a domain's held-out loss
SURFACE_LOW = 0.95  # of held-out rows that single tokens tell the domain of, each domain counted alike
SURFACE_DROP = (
    0.10  # of these, lost when twenty markers of each domain are masked: a template, not a language
)

# --- how documents begin ---

PREFIX_CHARS = (
    8,
    12,
    16,
    24,
    32,
)  # "Problem: " has nine characters; the longest that is over the bound is shown
PREFIX_HIGH, PREFIX_MEDIUM = 0.50, 0.20  # of the documents of a domain
MAX_FIRST_CHARACTER = 0.50
MAX_LEADING, MAX_SKEW = 0.01, 3.0  # of the documents of a domain; times those of another domain
MIN_SKEWED = 0.001  # three times nothing is nothing: below one in a thousand no skew is told
MIN_DOCUMENTS = 20  # of a domain: in fewer, one document is more than a twentieth

# --- what a dataset was made with ---

MAX_ARTEFACT = 0.01  # of the documents of a source
COMMON_SUFFIX = 0.50  # of the documents of a source end alike

# --- size ---

TOKENS_PER_PARAMETER = 20  # compute-optimal (Hoffmann et al. 2022)

# --- mixture ---

MAX_IMBALANCE = 1.5  # tokens of the largest domain, in those of the smallest
MAX_MIX_POINTS = 2.0  # percentage points between a share that was asked for and the built one
MIN_DOMINANT = 0.95  # of the tokens of a domain, in one language
EPOCHS_MEDIUM, EPOCHS_HIGH = 1.0, 4.0  # four repetitions are nearly as good as new text (docs/mixtures.md)
MAX_DRIFT = 0.03  # between the first and the last half of the build
SIGMAS = (
    3.0  # and more than chance gives documents of such lengths: 300 short ones differ by 3 % for no reason
)
MAX_DOCUMENT = 0.01  # of the tokens of a build

# --- rows ---

MAX_TAIL, MAX_PADDING = 0.005, 0.02  # of the tokens, of the columns
PADDING_MEDIUM = 0.20  # a fifth of the compute
TRUNCATION_HIGH = 0.01  # of the tokens; one truncated token is told

# --- copies ---

MAX_CLUSTER, MIN_CLUSTER = 0.01, 20  # of the documents that came to deduplication, and at least so many

# --- sources ---

LITTLE_SCANNED = 0.10  # of a source: what its head says of the rest is a guess
MAX_UNLABELLED = 0.01  # of the documents of a source

# --- how much is read ---

SCANNED_BYTES = 4 << 30  # of text: less than a minute of one core (89 MB/s measured)
EVAL_DOCUMENTS = 20_000  # held-out documents whose near duplicates are looked for: 25 MB of fingerprints
TRAIN_BYTES = 1 << 30  # of training text that they are compared with: thirteen seconds of one core
PROBE_TRAIN_TOKENS, PROBE_HELD_OUT_TOKENS = 64 << 20, 16 << 20  # of rows that are told apart: some seconds
