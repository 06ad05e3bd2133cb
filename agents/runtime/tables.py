"""`oci/tables.h`, made from policies/runtime/nodes.toml and the names of templates in policies/vnpu.

The file is checked in, so that a host needs only a C compiler; ``python -m belay.agents.runtime.tables`` regenerates
it, and a test checks that it is current.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from belay import SHIPPED

HEADER: Final = Path(__file__).parent / "oci" / "tables.h"
_MAX_FILE: Final = 1 << 20


def policies() -> Path:
    """The shipped policies: at the top of a checkout, inside an installed package."""
    return SHIPPED / "policies"


def header(folder: Path | None = None) -> str:
    """The text of tables.h. Raises ValueError naming the file and key that is wrong."""
    folder = folder or policies()
    file = folder / "runtime" / "nodes.toml"
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        return _text(data, template_names(folder))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from error
    except KeyError as error:
        raise ValueError(f"{file}: {error.args[0]} is missing") from error


def template_names(folder: Path) -> Sequence[str]:
    """Every vNPU template that any family of chips knows, sorted."""
    names: set[str] = set()
    for path in sorted((folder / "vnpu").glob("*.yaml")):
        if path.stat().st_size > _MAX_FILE:
            raise ValueError(f"{path}: larger than {_MAX_FILE} bytes")
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if isinstance(document, Mapping) and document.get("kind") == "VNPUTemplates":
                names.update(template["name"] for template in document["spec"]["templates"])
    return sorted(names)


def _text(data: Mapping[str, Any], templates: Sequence[str]) -> str:
    devices, sockets = data["devices"], data["sockets"]
    options = ",".join(f'"{option}"' for option in sockets["options"]).replace('"', '\\"')
    known = [_family(family) for family in data["families"] if family["name"] != "unknown"]
    unknown = next(_family(family) for family in data["families"] if family["name"] == "unknown")
    lists = {
        "table_folders": devices["folders"],
        "table_modest_products": devices["modest_products"],
        "table_libraries": data["libraries"],
        "table_cdi_libraries": data["cdi_libraries"],
        "table_driver_folders": data["driver_folders"],
        "table_always": data["always"],
        "table_sockets": sockets["paths"],
        "table_templates": templates,
    }
    return "\n".join(
        [
            "/* Made from policies/runtime and policies/vnpu by `python -m belay.agents.runtime.tables`; "
            "do not edit. */",
            "#ifndef BELAY_TABLES_H",
            "#define BELAY_TABLES_H",
            "",
            "#include <stdbool.h>",
            "#include <stddef.h>",
            "",
            f"#define TABLE_LISTS {_quoted(data['lists'])}",
            f"#define TABLE_CHIP {_quoted(devices['chip'])}",
            f"#define TABLE_VIRTUAL {_quoted(devices['virtual'])}",
            f"#define TABLE_ACCESS {_quoted(devices['access'])}",
            f'#define TABLE_BIND_OPTIONS "{options}"',
            "",
            "struct table_family {",
            "    const char *text;",
            "    bool prefix;",
            "    const char *optional[24], *renamed[8], *mandatory[8], *common[8];",
            "};",
            "",
            "/* each file that includes this uses some of it */",
            "#define TABLE static const __attribute__((unused))",
            "",
            "TABLE struct table_family table_families[] = {",
            *(f"    {family}," for family in known),
            "};",
            "",
            f"#define TABLE_UNKNOWN {unknown}",
            "",
            *(f"TABLE char *const {name}[] = {_array(values)};" for name, values in lists.items()),
            "",
            "#endif",
            "",
        ]
    )


def _family(family: Mapping[str, Any]) -> str:
    renamed = [name for pair in family.get("renamed", ()) for name in pair]
    parts = [
        f".text = {_quoted(family['text'])}",
        f".prefix = {'true' if family.get('prefix') else 'false'}",
        f".optional = {_array(family['optional'])}",
        f".renamed = {_array(renamed)}",
        f".mandatory = {_array(family['mandatory'])}",
        f".common = {_array(family['common'])}",
    ]
    return "{" + ", ".join(parts) + "}"


def _array(values: Iterable[str]) -> str:
    return "{" + ", ".join([*(_quoted(value) for value in values), "NULL"]) + "}"


def _quoted(text: str) -> str:
    if not text.isascii() or not text.isprintable() or '"' in text or "\\" in text:
        raise ValueError(f"{text!r} is not plain text for a table")
    return f'"{text}"'


def main() -> None:
    """Write ``tables.h`` beside the sources of the runtime."""
    HEADER.write_text(header(), encoding="utf-8")


if __name__ == "__main__":
    main()
