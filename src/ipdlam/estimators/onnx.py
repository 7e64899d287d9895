"""A network as an ONNX file."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from os import PathLike

import torch
from torch import nn


def write_onnx(module: nn.Sequential, features: int, path: str | PathLike[str]) -> None:
    """The network from a batch ``X`` of any number of rows to ``outputs``."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"export_onnx needs ONNX ({error}); pip install onnx onnxscript") from error
    example = torch.zeros(2, features, dtype=next(module.parameters()).dtype)
    with quiet():
        torch.onnx.export(
            module,
            (example,),
            str(path),
            input_names=["X"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("rows")},),
            dynamo=True,
            verbose=False,
            external_data=False,
        )


@contextlib.contextmanager
def quiet():  # type: ignore[no-untyped-def]
    """Without the exporter's reports of its own progress and of what it will change one day."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
