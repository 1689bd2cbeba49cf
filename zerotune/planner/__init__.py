"""Bytes and seconds of a run before it starts. Needs no torch: an unknown architecture alone makes it import one."""
