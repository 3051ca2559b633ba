"""An agent on the Anthropic messages API, with the skills of a Skillery server over MCP. Skillery is not installed.

pip install mcp anthropic
export SKILLERY_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=… MODEL=claude-…
python examples/mcp_agent.py "How many columns? a,b …"
"""

import asyncio
import os
import sys
from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from anthropic.types import ToolUseBlock
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

MODEL = os.environ["MODEL"]  # a model that your key may use: names of models end
URL = os.environ.get("SKILLERY_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("SKILLERY_TOKEN")
HEADERS = {"authorization": f"Bearer {TOKEN}"} if TOKEN else {}


async def ask(question: str) -> str:
    http = httpx2.AsyncClient(headers=HEADERS, timeout=httpx2.Timeout(10, read=None))
    transport = streamable_http_client(f"{URL}/mcp?tools=search_skills", http_client=http)
    async with http, AsyncAnthropic() as anthropic, Client(transport) as skillery:
        options: Any = {"model": MODEL, "max_tokens": 4096, "system": skillery.instructions or ""}
        options["tools"] = [
            {"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema}
            for tool in (await skillery.list_tools()).tools
        ]
        messages: list[Any] = [{"role": "user", "content": question}]
        while True:
            reply = await anthropic.messages.create(messages=messages, **options)
            messages.append({"role": "assistant", "content": reply.content})
            if reply.stop_reason != "tool_use":
                return "".join(block.text for block in reply.content if block.type == "text")
            calls = [block for block in reply.content if block.type == "tool_use"]
            results = [await called(skillery, call) for call in calls]
            messages.append({"role": "user", "content": results})


async def called(skillery: Client, call: ToolUseBlock) -> dict[str, Any]:
    result = await skillery.call_tool(call.name, call.input)
    text = "".join(part.text for part in result.content if part.type == "text")
    return {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": result.is_error}


if __name__ == "__main__":
    print(asyncio.run(ask(" ".join(sys.argv[1:]))))
