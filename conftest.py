"""For the tests of Skillery and of the plugins beside it."""

from hypothesis import settings

pytest_plugins = ["tests.support.parallel", "tests.support.chromium", "tests.support.durations", "tests.support.scale"]

# The speed of an example is not part of a test: it depends on the machine.
settings.register_profile("skillery", settings(), deadline=None)
settings.load_profile("skillery")
