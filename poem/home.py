"""POEM_HOME: where a user's own packages live, and where the shipped ones are copied."""

import os
from pathlib import Path


def poem_home() -> Path:
    """$POEM_HOME, by default ~/.poem."""
    given = os.environ.get("POEM_HOME")
    return Path(given).expanduser() if given else Path.home() / ".poem"


def shipped_models() -> Path:
    """The folder of the models that come with Poem: inside the installed package, or beside it in a source checkout."""
    here = Path(__file__).parent
    inside = here / "shipped" / "models"
    return inside if inside.is_dir() else here.parent / "models"
