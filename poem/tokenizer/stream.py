"""Text of a growing list of ids, handed out only once its characters are whole."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what decoding leaves of bytes that are no character, or not yet
LONGEST_INCOMPLETE = 3  # UTF-8 spends at most four bytes on a character


class TextStream:
    """Decodes ids as they come. `add` returns text that later ids cannot change; `finish` the rest.

    A token may hold a part of a character's bytes, and some decoders join tokens with spaces, so ids are decoded
    together with the last ones already shown and only the difference is handed out.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []  # ids whose text is out, decoded along with what follows
        self._pending: list[int] = []
        self._out = 0  # characters of the pending ids' text that are out

    def add(self, index: int) -> str:
        """The text that one more id completes; "" while its last character is incomplete."""
        self._pending.append(index)
        text = self._text()
        whole = len(text)
        while whole > max(self._out, len(text) - LONGEST_INCOMPLETE) and text[whole - 1] == REPLACEMENT:
            whole -= 1
        piece = text[self._out : whole]
        if whole == len(text):
            self._context, self._pending, self._out = self._pending, [], 0
        else:
            self._out = whole
        return piece

    def finish(self) -> str:
        """The text of ids still held back; bytes that never became a character are U+FFFD."""
        piece = self._text()[self._out :] if self._pending else ""
        self._context, self._pending, self._out = [], [], 0
        return piece

    def _text(self) -> str:
        before = self._decode(self._context) if self._context else ""
        text = self._decode(self._context + self._pending)
        # Decoders with byte tokens take a run of them as one: an incomplete character undoes the whole one before it.
        return text[len(before) :] if text.startswith(before) else self._decode(self._pending)
