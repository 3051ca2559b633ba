"""The params of the methods for development versions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skillery.method import Params, about
from skillery.methods.params import BundleParams

SkillNames = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(min_length=1, max_length=50)]


class DevelopSkill(BundleParams, frozen=True, kw_only=True):
    """Serve a bundle to the caller alone as a development version ('1.2.0-dev.3'), without publishing anything."""


class KeepDevelopment(Params, frozen=True, kw_only=True):
    """Keep serving development versions, which end 30 seconds after the last call."""

    names: Annotated[SkillNames, about("Names of the skills")]


class EndDevelopment(Params, frozen=True, kw_only=True):
    """Stop serving development versions."""

    names: Annotated[SkillNames, about("Names of the skills")]
