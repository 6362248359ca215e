"""What building or running a kernel can be refused with."""

from poem.errors import PoemError


class KernelError(PoemError):
    """A kernel that cannot be built, or a launch that failed or was found wrong.

    Codes: `cuda.*` for tools and devices that are missing or refuse, `kernel.*` for sources and launch records,
    `emu.*` for what the emulator's checker found.
    """
