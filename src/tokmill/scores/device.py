"""On what a model computes: a CPU, or a GPU that torch can use."""

from __future__ import annotations

from typing import Literal

from tokmill.errors import InputError

Device = Literal["auto", "cpu", "cuda"]


def choose_device(asked: Device) -> Literal["cpu", "cuda"]:
    """`auto` is a GPU where there is one."""
    has_gpu = asked != "cpu" and _has_gpu()
    if asked == "cuda" and not has_gpu:
        raise InputError(
            "`device: cuda`, and there is no GPU that torch can use",
            where="scores",
            next="run it where there is one, or set `device: auto`",
        )
    return "cuda" if has_gpu else "cpu"


def device_name(device: str) -> str:
    """As its maker calls it."""
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_name())


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())
