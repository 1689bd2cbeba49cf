"""Resume a ZeRO checkpoint on another number of ranks, another stage, with or without offload.

`stored` says where every element of a checkpoint lies, `layout` which elements this rank of a new engine owns,
`restore` reads the ones into the other. DeepSpeed's files stay as they are; nothing is gathered or written on the way.
"""
