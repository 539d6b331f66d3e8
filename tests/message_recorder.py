"""A progress object for tests that records messages."""

from swivel.runtime.progress import Progress


class MessageRecorder(Progress):
    """Keeps all messages in `lines` and shows nothing."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)
