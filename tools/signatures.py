"""Writes the stub of the methods' parameters, src/labelwise/signatures.pyi, for editors that do not run the code.

python tools/signatures.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import labelwise
from labelwise.config import sections_of
from labelwise.io.atomic import replacing
from labelwise.model.estimator import plain_type
from labelwise.registry import METHODS, method_class

STUB = Path(labelwise.__file__).with_name("signatures.pyi")
HEADER = '''"""Parameters of the methods, for editors: written by `tools/signatures.py`."""

from collections.abc import Mapping
from typing import Any, Literal, Optional, Union

'''


def stub_text(methods: Iterable[type]) -> str:
    """A stub module with one class per method, whose constructor lists the parameters."""
    imports: set[str] = set()
    classes: list[str] = []
    for method in methods:
        module, name = method.__module__, method.__name__
        imports.add(f"from {module} import {name} as _{name}\n")
        lines = [f"class {name}(_{name}):", _quoted(method.__doc__ or "", "    "), "    def __init__(", "        self,"]
        fields = method.Config.model_fields  # type: ignore[attr-defined]
        lines += ["        *,"] if fields else []
        for key, field in fields.items():
            imports |= {f"from {one.__module__} import {one.__name__}\n" for one in sections_of(field.annotation)}
            default = "..." if sections_of(field.annotation) else repr(field.get_default(call_default_factory=True))
            lines.append(
                f"        {key}: {_type_text(field.annotation)}{'' if field.is_required() else f' = {default}'},"
            )
        classes.append("\n".join([*lines, "    ) -> None: ...\n"]))
    return HEADER + "".join(sorted(imports)) + "\n" + "\n".join(classes)


def _type_text(annotation: Any) -> str:
    """A type as it is written; a section is its config or a mapping."""
    sections = sections_of(annotation)
    if sections:
        nothing = ["None"] if type(None) in get_args(annotation) else []
        return " | ".join(["Mapping[str, Any]", *(section.__name__ for section in sections), *nothing])
    return inspect.formatannotation(plain_type(annotation)).replace("typing.", "").replace("NoneType", "None")


def _quoted(text: str, indent: str) -> str:
    lines = [f"{indent}{line}".rstrip() for line in text.splitlines()]
    return "\n".join([f'{indent}"""{lines[0].strip()}', *lines[1:], f'{indent}"""'])


def main() -> None:
    with replacing(STUB) as file:
        file.write(stub_text(method_class(name) for name in METHODS))


if __name__ == "__main__":
    main()
