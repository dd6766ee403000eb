"""Grade an answer from the shell: python -m notebooks.checks 03a my_file.py"""

import runpy
import sys

from notebooks.checks import EXERCISES, check


def main(arguments: list[str]) -> int:
    """Print the evidence; 0 if the answer passes, 1 if it doesn't, 2 if there is none to grade."""
    if len(arguments) != 2 or arguments[0] not in EXERCISES:
        print(
            "python -m notebooks.checks EXERCISE FILE.py grades an answer, "
            f"EXERCISE being one of {', '.join(EXERCISES)}",
            file=sys.stderr,
        )
        return 2
    exercise, file = arguments
    name, _ = EXERCISES[exercise]
    try:
        answers = runpy.run_path(file)
    except (Exception, SystemExit) as error:  # or a file that ends itself with 0 would pass
        print(f"{file} can't be run: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if name not in answers:
        print(f"{file} has no {name}: exercise {exercise} asks for it", file=sys.stderr)
        return 2
    evidence = check(exercise, answers[name])
    print(evidence)
    return 0 if evidence.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
