"""Zstandard as the standard library has it from Python 3.14 on, and its backport before.

Chosen over `zstandard` because its readers raise on a frame that did not end; `zstandard`'s return the
short data as if it were all (a test keeps both facts).
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 3

CompressionParameter = zstd.CompressionParameter
ZstdCompressor = zstd.ZstdCompressor
ZstdDecompressor = zstd.ZstdDecompressor
ZstdError = zstd.ZstdError
ZstdFile = zstd.ZstdFile


def frame_options() -> dict[int, int]:
    """Every frame carries a checksum, so that a flipped bit is an error and not other text."""
    return {CompressionParameter.compression_level: _LEVEL, CompressionParameter.checksum_flag: 1}


__all__ = [
    "CompressionParameter",
    "ZstdCompressor",
    "ZstdDecompressor",
    "ZstdError",
    "ZstdFile",
    "frame_options",
]
