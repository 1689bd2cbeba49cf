"""The verbs of zerotune-config: parse, call, print."""
