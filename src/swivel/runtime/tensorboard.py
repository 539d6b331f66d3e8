"""Training curves for TensorBoard, written during the run: the only files that `swivel.storage` does not write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swivel.errors import clear_errors, missing_extra
from swivel.runtime.progress import SILENT, ForwardingProgress, Progress


class TensorboardProgress(ForwardingProgress):
    """Progress that writes measured values to `folder` for `tensorboard --logdir`; needs the extra `tensorboard`."""

    def __init__(self, folder: str | Path, progress: Progress = SILENT) -> None:
        # Fail now if the library is missing, not after the text was counted.
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_extra("curves for TensorBoard", "tensorboard", "tensorboard") from error

        super().__init__(progress)
        self.folder = Path(folder)
        self._make_writer = SummaryWriter
        self._writer: Any = None  # Making one creates the folder, so it waits for the first value.

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Write values measured at a step."""
        with clear_errors(self.folder):
            self._writer = self._writer or self._make_writer(log_dir=str(self.folder))
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()  # Twenty points per epoch: nothing is lost if the run is killed.

        super().measure(step, values)
