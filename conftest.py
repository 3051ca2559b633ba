"""For the tests of Skillery and of the plugins beside it."""

from hypothesis import settings

pytest_plugins = [
    f"tests.support.{name}" for name in ("parallel", "chromium", "forms", "durations", "postgres_statements")
]

# The speed of an example is not part of a test: it depends on the machine.
settings.register_profile("skillery", settings(), deadline=None)
settings.load_profile("skillery")
