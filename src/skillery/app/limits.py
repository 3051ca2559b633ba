"""The limits of runs and of bundles, built from the settings."""

from __future__ import annotations

import msgspec

from skillery.backends import Limits
from skillery.errors import StartupError
from skillery.formats.bundle import BundleLimits
from skillery.runs.limits import LimitRules
from skillery.settings import Settings


def limit_rules(settings: Settings) -> LimitRules:
    """Return the default and the highest limits. Raise StartupError if a default is above its maximum."""
    defaults = Limits(**msgspec.structs.asdict(settings.limits))
    maximum = msgspec.structs.asdict(settings.max_limits)
    for name, most in maximum.items():
        if getattr(defaults, name) > most:
            raise StartupError(
                f"setting 'limits.{name}' is {getattr(defaults, name)}, above max_limits.{name} ({most}); lower it"
            )
    return LimitRules(defaults, maximum)


def bundle_limits(settings: Settings) -> BundleLimits:
    return BundleLimits(max_bytes=settings.bundle_max_mb * 1024 * 1024, max_files=settings.bundle_max_files)
