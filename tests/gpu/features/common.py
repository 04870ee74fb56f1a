# SPDX-License-Identifier: MIT
"""Features of a framework, each tried once: one line `NAME: ok ANSWER` or
`NAME: failed ERROR` (see tests/gpu/cases.py), the same in every run."""
import sys
import traceback

ALL = []


def feature(function):
    ALL.append(function)
    return function


def digits(*values, n=6):
    """Answers that do not depend on the order of a sum."""
    return " ".join(f"{float(value):.{n}g}" for value in values)


def main():
    wanted = sys.argv[1:]
    for function in ALL:
        if wanted and function.__name__ not in wanted:
            continue
        try:
            answer = f"ok {function()}"
        except Exception as error:  # whatever it is, the other run has it too
            text = str(error).strip().splitlines()
            answer = f"failed {type(error).__name__} {text[:1]}"
            traceback.print_exc()
        print(f"{function.__name__}: {answer}", flush=True)
