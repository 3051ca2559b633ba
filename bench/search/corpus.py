"""A corpus with a fixed seed, whose descriptions resemble those of public skills, and queries with useful results.

`anchors.json` has 40 queries and the skills that they mean. `queries.json` has 60 tasks in plain English, and 24 in
other languages. The corpus has the skills of `anchors.json`, and skills that are generated from a topic, an activity
and phrases that authors use.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from skillery.app.bundled import bundled_folders

ANCHORS, QUERIES = (Path(__file__).parent / name for name in ("anchors.json", "queries.json"))
GENERATED = 2000
COPIES = 120
TOPICS = {
    "kubernetes": "Kubernetes clusters, pods, Helm charts and ingress",
    "terraform": "Terraform modules, state and cloud infrastructure as code",
    "react": "React components, hooks and client state",
    "vue": "Vue 3 single-file components and Pinia stores",
    "django": "Django models, views and the admin",
    "rails": "Ruby on Rails controllers, Active Record and jobs",
    "spring": "Spring Boot services, beans and REST controllers",
    "postgres": "PostgreSQL schemas, indexes and query plans",
    "mongodb": "MongoDB collections, aggregation pipelines and indexes",
    "redis": "Redis caches, streams and expiry",
    "kafka": "Kafka topics, consumers and schemas",
    "graphql": "GraphQL schemas, resolvers and federation",
    "typescript": "TypeScript types, generics and strict mode",
    "rust": "Rust crates, ownership and async runtimes",
    "golang": "Go packages, goroutines and interfaces",
    "swift": "Swift and SwiftUI views for iOS",
    "android": "Android apps with Kotlin and Jetpack Compose",
    "flutter": "Flutter widgets and Dart packages",
    "playwright": "Playwright browser sessions, locators and traces",
    "stripe": "Stripe payments, subscriptions and webhooks",
    "shopify": "Shopify themes, apps and storefronts",
    "wordpress": "WordPress plugins, blocks and themes",
    "salesforce": "Salesforce objects, Apex and flows",
    "hubspot": "HubSpot contacts, deals and pipelines",
    "notion": "Notion pages, databases and templates",
    "jira": "Jira issues, boards and sprints",
    "slack": "Slack channels, messages and bots",
    "github": "GitHub repositories, pull requests and Actions workflows",
    "gitlab": "GitLab merge requests and pipelines",
    "aws": "AWS accounts, Lambda functions and IAM policies",
    "azure": "Azure resources, functions and app services",
    "gcp": "Google Cloud projects, Cloud Run and BigQuery",
    "snowflake": "Snowflake warehouses, stages and roles",
    "dbt": "dbt models, tests and lineage",
    "airflow": "Airflow DAGs, operators and schedules",
    "spark": "Spark jobs, dataframes and partitions",
    "pandas": "pandas dataframes, joins and time series",
    "pytorch": "PyTorch models, training loops and checkpoints",
    "huggingface": "Hugging Face models, datasets and tokenizers",
    "langchain": "LangChain agents, tools and retrievers",
    "prometheus": "Prometheus metrics, alerts and recording rules",
    "grafana": "Grafana dashboards, panels and data sources",
    "nginx": "nginx servers, locations and certificates",
    "docker": "Docker images, layers and compose files",
    "linux": "Linux services, disks and permissions",
    "figma": "Figma frames, variables and design tokens",
    "tailwind": "Tailwind CSS utilities, themes and plugins",
    "seo": "search engine rankings, keywords and sitemaps",
    "email": "email newsletters, sequences and deliverability",
    "tax": "tax returns, deductions and filings",
    "legal": "legal contracts, clauses and compliance",
    "finance": "financial statements, budgets and forecasts",
    "recruiting": "job posts, candidates and interviews",
    "genomics": "genome alignments, variants and annotations",
    "chemistry": "molecules, reactions and descriptors",
    "video": "video clips, captions and encodings",
    "audio": "audio recordings, podcasts and transcripts",
    "maps": "geographic layers, routes and coordinates",
}
ACTIVITIES = {
    "reviewer": ("Reviews", "review code and changes", "problems, risks and better alternatives"),
    "patterns": ("Best practices and patterns for", "follow conventions", "structure, naming and architecture"),
    "debugger": ("Debugs", "find the cause of errors and failures", "logs, stack traces and reproduction steps"),
    "optimizer": (
        "Optimizes the performance of",
        "make something faster or cheaper",
        "profiles, bottlenecks and costs",
    ),
    "tester": ("Writes and runs tests for", "add test coverage", "unit tests, fixtures and edge cases"),
    "docs": ("Documents", "write documentation and guides", "references, examples and diagrams"),
    "security": ("Audits the security of", "check for vulnerabilities", "secrets, permissions and attack surface"),
    "scaffold": (
        "Scaffolds new projects with",
        "create or start a project",
        "templates, configuration and a first test",
    ),
    "monitor": ("Monitors", "watch health and get alerts", "metrics, thresholds and reports"),
    "deployer": ("Deploys and releases", "ship to production", "environments, rollbacks and checks"),
    "analyzer": ("Analyzes data about", "get insights, statistics and charts", "summaries, trends and tables"),
    "planner": ("Plans work on", "break a goal into steps", "milestones, estimates and dependencies"),
    "expert": ("Expert guidance on", "ask questions about details", "concepts, trade-offs and pitfalls"),
    "automation": ("Automates workflows with", "automate repetitive tasks", "triggers, scripts and schedules"),
    "importer": (
        "Imports, exports and converts data of",
        "move data between systems",
        "formats, mappings and validation",
    ),
    "assistant": ("Helps users with", "get help with everyday tasks", "answers, drafts and next steps"),
}
SENTENCES = (
    "{verb} {subject}. Use when the user wants to {wish}.",
    "{verb} {subject}. Use this skill whenever someone asks to {wish}, even if they do not name it. Covers {extra}.",
    "{verb} {subject}, including {extra}. Triggers: {topic}, {wish}.",
    "Comprehensive toolkit: {verb_lower} {subject}. Provides {extra}. Invoke it when you need to {wish}.",
)
# fmt: off
BODY_WORDS = (
    "step", "file", "output", "check", "project", "run", "command", "section", "example", "create", "make",
    "sure", "user", "data", "code", "before", "after", "using", "need", "should", "write", "read",
    "list", "report", "error", "config", "change", "version", "tool", "team", "work", "time", "result",
    "value", "format", "test", "build", "design", "analysis", "search", "quality", "process", "table", "page",
    "image", "model", "text", "api", "document", "key", "type", "new",
)
# fmt: on
NAMESPACES = ("community", "acme", "labs", "toolbox", "studio", "awesome")


class Skill(NamedTuple):
    name: str
    description: str
    tags: tuple[str, ...]
    body: str


class Query(NamedTuple):
    kind: str
    text: str
    means: tuple[str, ...]
    """Names of useful results."""


class Anchors(msgspec.Struct):
    skills: tuple[Skill, ...]
    queries: tuple[Query, ...]


def anchors() -> Anchors:
    """Return the skills that the queries mean, and the queries."""
    return msgspec.json.decode(ANCHORS.read_bytes(), type=Anchors)


def task_queries() -> list[Query]:
    """Return the queries that describe a task, of the kinds `english` and `languages`."""
    return msgspec.json.decode(QUERIES.read_bytes(), type=list[Query])


def corpus(seed: int = 14) -> list[Skill]:
    """Return the anchors, the generated skills and identical copies of some of both."""
    choose = random.Random(seed)
    skills = [*anchors().skills, *_generated(choose)]
    copied = choose.sample(skills, COPIES)
    return skills + [one._replace(name=f"mirror{number % 7}.{one.name}") for number, one in enumerate(copied)]


def bundled() -> list[Skill]:
    """Return the bundled skills, each once."""
    return list({skill.name: skill for skill in map(_bundled, bundled_folders())}.values())


def _bundled(folder: Path) -> Skill:
    manifest = tomllib.loads((folder / "skill.toml").read_text())
    return Skill(manifest["name"], manifest["description"], tuple(manifest["tags"]), (folder / "SKILL.md").read_text())


def _generated(choose: random.Random) -> Iterator[Skill]:
    pairs = [(topic, activity) for topic in TOPICS for activity in ACTIVITIES]
    for number in range(GENERATED):
        topic, activity = pairs[number % len(pairs)]
        verb, wish, extra = ACTIVITIES[activity]
        subject = TOPICS[topic]
        given = {"verb": verb, "verb_lower": verb.lower(), "subject": subject, "wish": wish, "extra": extra}
        description = choose.choice(SENTENCES).format(topic=topic, **given)
        name = (
            f"{topic}-{activity}" if number < len(pairs) else f"{choose.choice(NAMESPACES)}.{topic}-{activity}-{number}"
        )
        words = choose.choices([*BODY_WORDS, *subject.replace(",", "").split(), *extra.replace(",", "").split()], k=150)
        body = f"# {topic.title()} {activity}\n\n{' '.join(words)}.\n"
        yield Skill(name, description, (topic, activity), body)
