"""Count the words of a text. Replace this code with your own."""

from collections import Counter

from runtime import log


def main(args):
    """Return what the run answers. `args` are checked against [inputs] in skill.toml, with the defaults filled in."""
    log.info(f"counting the words of {len(args['text'])} characters")
    return count(args["text"], args["top"])


def count(text, top):
    """Return the number of words, of different words, and the most frequent words."""
    if top < 0:
        raise ValueError(f"top is {top}: give 0 or more")
    words = Counter(text.lower().split())
    frequent = sorted(words.items(), key=lambda pair: (-pair[1], pair[0]))[:top]
    return {
        "summary": f"{words.total()} words, {len(words)} different.",
        "words": words.total(),
        "different": len(words),
        "top": dict(frequent),
    }
