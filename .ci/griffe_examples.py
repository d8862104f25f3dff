"""Tells mkdocstrings that an "Example:" of a docstring is a section of examples, whose code is shown as code."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames the sections before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Look at every object that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
