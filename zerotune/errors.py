"""The one exception for mistakes that the user can mend."""

EXIT_FINDINGS = 1
EXIT_USAGE = 2


class UsageError(Exception):
    """The user's input is wrong. The message says what, where and how to mend it; no traceback is shown.

    Commands print it once (rank 0 only in a distributed job) and end with exit code 2. A bug must not
    be raised as this: bugs keep their traceback.
    """


def nearest(word: str, choices, number: int = 3, cutoff: float = 0.5) -> list[str]:
    """The choices closest to `word`, best first: for 'did you mean' in messages."""
    import difflib

    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_lower, n=number, cutoff=cutoff)
    return [by_lower[name] for name in close]
