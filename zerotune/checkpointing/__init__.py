"""Save, retain, resume and export checkpoints. Importing the package imports nothing heavy."""
