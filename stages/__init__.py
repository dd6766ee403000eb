"""The loop of `generate.py`, one change at a time; read the stages in order."""
