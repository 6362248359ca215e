"""The methods of `inputs`: what a forward pass may ask for at run time, with their types."""

from typing import NamedTuple

from poem.graph import ValueType


class InputMethod(NamedTuple):
    """A method of `inputs` without a cache behind it.

    type: of its value, None for a mask. geometry: it describes a kv space, whose id it takes unless it is None.
    """

    type: ValueType | None
    geometry: bool = False


METHODS = {
    "tokens": InputMethod(ValueType("tokens", 1, "i32")),
    "positions": InputMethod(ValueType("tokens", 1, "i32")),
    "readout_rows": InputMethod(ValueType("readouts", 1, "i32")),
    "adapter_routes": InputMethod(ValueType("tokens", 1, "i32")),
    "mask": InputMethod(None),
    "mrope_positions": InputMethod(ValueType("tokens", 3, "i32")),
    "request_of_token": InputMethod(ValueType("tokens", 1, "i32")),
    "row_valid": InputMethod(ValueType("tokens", 1, "u8")),
    "write_page": InputMethod(ValueType("tokens", 1, "i32"), geometry=True),
    "write_offset": InputMethod(ValueType("tokens", 1, "i32"), geometry=True),
    "kv_len": InputMethod(ValueType("lanes", 1, "i32"), geometry=True),
    "last_page_len": InputMethod(ValueType("lanes", 1, "i32"), geometry=True),
    "kv_indptr": InputMethod(ValueType("lanes+1", 1, "i32"), geometry=True),
    "lane_indptr": InputMethod(ValueType("lanes+1", 1, "i32")),
}
CACHES = ("kv", "state")
MEDIA = (
    "pixels", "patch_positions", "image_grids", "patch_segments", "patch_routes", "voxels", "grid", "token_grid", "latents",
    "lane_vector", "context", "axis_positions", "row_permutation", "reference_tags", "group_indptr", "self_cond_rows",
    "self_cond_weights", "on", "partition", "reading",
)  # fmt: skip
ALL = (*METHODS, *CACHES, *MEDIA)
