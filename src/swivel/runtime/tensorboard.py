"""Training curves for TensorBoard, written during the run.

These event files are the only files that are not written by `swivel.storage`, because only the TensorBoard library
knows their format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swivel.errors import clear_errors, missing_extra
from swivel.runtime.progress import SILENT, ForwardingProgress, Progress, Task


class TensorboardProgress(ForwardingProgress):
    """Progress that writes measured values to a folder for `tensorboard --logdir`; needs the extra `tensorboard`.

    Parameters
    ----------
    folder
        Folder of the event files. A resumed run adds a file.
    progress
        Another receiver of all events, such as the progress bars of the command line.
    """

    def __init__(self, folder: str | Path, progress: Progress = SILENT) -> None:
        # Fail now if the library is missing, not after the text was counted.
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_extra("curves for TensorBoard", "tensorboard", "tensorboard") from error

        super().__init__(progress)
        self.folder = Path(folder)
        self._make_writer = SummaryWriter
        self._writer: Any = None

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Write values measured at a step."""
        with clear_errors(self.folder):
            if self._writer is None:
                self._writer = self._make_writer(log_dir=str(self.folder))

            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

        super().measure(step, values)

    def end(self, task: Task) -> None:
        """Close the event file at the end of the task that was measured."""
        if self._writer is not None:
            with clear_errors(self.folder):
                self._writer.close()
            self._writer = None

        super().end(task)
