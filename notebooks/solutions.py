"""Solutions of the exercises, one function or class each, under the name that the exercise gives."""
