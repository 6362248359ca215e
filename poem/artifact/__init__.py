"""The `.zt` artifact: an imported model in one file, its package text included."""

from poem.artifact.container import Container, verify
from poem.artifact.read import Artifact, open_artifact
from poem.artifact.write import write_artifact

__all__ = ["Artifact", "Container", "open_artifact", "verify", "write_artifact"]
