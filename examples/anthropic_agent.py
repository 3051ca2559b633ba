"""An agent on the Anthropic messages API, with the skills of a Skillery server.

pip install dist/skillery_client-*.whl anthropic
export SKILLERY_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=… MODEL=claude-…
python examples/anthropic_agent.py "How many columns? a,b …"
"""

import os
import sys
from typing import Any

from anthropic import Anthropic

from skillery.client import Client

MODEL = os.environ["MODEL"]  # a model that your key may use: names of models end


def ask(question: str) -> str:
    with Client() as skillery, Anthropic() as anthropic:
        options: Any = {"model": MODEL, "max_tokens": 4096, "system": skillery.prompt()}
        options["tools"] = skillery.tools("anthropic")
        messages: list[Any] = [{"role": "user", "content": question}]
        while True:
            reply = anthropic.messages.create(messages=messages, **options)
            messages.append({"role": "assistant", "content": reply.content})
            if reply.stop_reason != "tool_use":
                return "".join(block.text for block in reply.content if block.type == "text")
            results = [skillery.handle(block) for block in reply.content if block.type == "tool_use"]
            messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    print(ask(" ".join(sys.argv[1:])))
