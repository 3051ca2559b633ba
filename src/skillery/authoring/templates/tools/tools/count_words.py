"""The handler of the tool `count_words`. Replace this code with your own."""


def handler(args):
    """Return the result of the tool. `args` are checked against the parameters in tools.json."""
    text = args["text"]
    return {"count": len(text.splitlines() if args.get("by") == "line" else text.split())}
