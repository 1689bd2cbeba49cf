"""Checks of this machine and these folders, made before anything is built or written."""
