"""Chat templates: conversations as token ids."""

from poem.templates.formats import FORMATS, Format
from poem.templates.render import read_reply, render_chat, stop_ids

__all__ = ["FORMATS", "Format", "read_reply", "render_chat", "stop_ids"]
