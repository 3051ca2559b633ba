"""The statements of the five documents, in their order."""

from __future__ import annotations

from skills_protocol_conformance.documents import (
    core_concepts,
    execution_methods,
    protocol,
    protocol_methods,
    skill_tools,
    tool_interface,
)
from skills_protocol_conformance.statement import Statement, document

SKILL_TOOLS = "skill-tools"

STATEMENTS: list[Statement] = [
    *document("skills-protocol", "SP", {**protocol.SECTIONS, **protocol_methods.SECTIONS}),
    *document("core-concepts", "CC", core_concepts.SECTIONS),
    *document("execution-methods", "EM", execution_methods.SECTIONS),
    *document("llm-tool-interface", "TI", tool_interface.SECTIONS),
    *document(SKILL_TOOLS, "ST", skill_tools.SECTIONS),
]
