"""An agent on the OpenAI chat completions API, or a compatible server, with the skills of a Skillery server.

pip install dist/skillery_client-*.whl openai
export SKILLERY_URL=http://127.0.0.1:8080 OPENAI_API_KEY=… MODEL=gpt-…
python examples/openai_agent.py "How many columns? a,b …"
"""

import os
import sys
from typing import Any

from openai import OpenAI

from skillery.client import Client

MODEL = os.environ["MODEL"]  # a model that your key may use: names of models end


def ask(question: str) -> str:
    with Client() as skillery, OpenAI() as openai:
        tools = skillery.tools("openai")
        messages: list[Any] = [{"role": "system", "content": skillery.prompt()}, {"role": "user", "content": question}]
        while True:
            reply = openai.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
            messages.append(reply)
            if not reply.tool_calls:
                return reply.content or ""
            messages += [skillery.handle(call) for call in reply.tool_calls]


if __name__ == "__main__":
    print(ask(" ".join(sys.argv[1:])))
