"""Solutions of the exercises, one function or class each, by the name an exercise asks for."""
